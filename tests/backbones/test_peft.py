"""Blocks that change inputs or add keys and values compute what PEFT computes with the same numbers."""

import copy

import pytest
import torch
from peft import IA3Config, PrefixTuningConfig, get_peft_model

from polyloom.backbones import attention
from polyloom.errors import BackboneError, ConfigError
from polyloom.methods.madx import MadXConfig
from polyloom.methods.translation_banks import LangAdaptersConfig
from polyloom.model import Model
from tests.contracts.tiny import shared_backbone, tiny_backbone, tiny_inputs

ROWS = ["mt/en", "mt/tr", "mt/en", "mt/sw"]
LANGUAGES = ["en", "tr", "sw"]


def model_with(block: str, family: str, **settings) -> Model:
    """A model with other random blocks for each language."""
    model = Model(
        shared_backbone(family), LangAdaptersConfig(block=block, **settings), languages=LANGUAGES, tasks=["mt"]
    )
    torch.manual_seed(5)
    for parameter in model.method.parameters():
        parameter.data.normal_(mean=1.0 if block == "ia3" else 0.0, std=0.5)
    return model.eval()


@pytest.mark.parametrize(
    ("family", "names", "feedforward"),
    [
        (
            "bert",
            {"k": "attention.self.key", "v": "attention.self.value", "down": "output.dense"},
            r".*\d\.output\.dense",
        ),
        ("llama", {"k": "self_attn.k_proj", "v": "self_attn.v_proj", "down": "mlp.down_proj"}, r".*mlp\.down_proj"),
    ],
)
def test_ia3_of_a_mixed_batch_is_pefts_for_each_language(family, names, feedforward, load_example):
    load_example("own_block")
    model, inputs = model_with("ia3", family), tiny_inputs(family, len(ROWS))
    with torch.no_grad():
        mixed = model(inputs, ROWS).logits
    pattern = "|".join(rf".*\d\.{path}" for path in names.values())
    config = IA3Config(target_modules=pattern, feedforward_modules=feedforward)
    theirs = get_peft_model(copy.deepcopy(model.backbone.model), config).eval()
    for number, row in enumerate(ROWS):
        (block,) = model.weights([row]).blocks
        filled = 0
        for name, path in names.items():
            for module_name, parameter in theirs.named_parameters():
                for site, tensors in zip(block.sites, block.by_site(), strict=True):
                    if f".{site.layer}.{path}.ia3_l" in module_name:
                        parameter.data.copy_(tensors[f"{name}_scale"].view_as(parameter))
                        filled += 1
        assert filled == len(names) * len(block.sites)
        with torch.no_grad():
            alone = theirs(**{key: tensor[number : number + 1] for key, tensor in inputs.items()}).logits
        torch.testing.assert_close(mixed[number : number + 1], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_prefixes_of_a_mixed_batch_are_pefts_for_each_language(family, load_example):
    """PEFT passes a prefix as the cache of a text in front, so positions begin behind it; here they are set so."""
    load_example("own_prefix")
    length = 3
    model, inputs = model_with("prefix", family, adapter_size=length), tiny_inputs(family, len(ROWS))
    positions = torch.arange(length, length + inputs["input_ids"].shape[1])[None].expand(len(ROWS), -1)
    with torch.no_grad():
        mixed = model(inputs | {"position_ids": positions}, ROWS).logits
    config = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=length)
    theirs = get_peft_model(copy.deepcopy(model.backbone.model), config).eval()
    for number, row in enumerate(ROWS):
        (block,) = model.weights([row]).blocks
        layers = [torch.cat([tensors["key"], tensors["value"]], dim=-1) for tensors in block.by_site()]
        theirs.prompt_encoder["default"].embedding.weight.data.copy_(torch.cat(layers, dim=-1))
        one = {key: tensor[number : number + 1] for key, tensor in inputs.items()}
        with torch.no_grad():
            alone = theirs(**one).logits
        seen = one["attention_mask"][0] == 1
        torch.testing.assert_close(mixed[number][seen], alone[0][seen], rtol=0, atol=1e-5)


def test_a_prefix_cannot_stand_over_language_adapters_that_are_trained_without_it(load_example):
    load_example("own_prefix")
    with pytest.raises(ConfigError, match=r"method\.block: a prefix block always has an effect"):
        Model(shared_backbone("bert"), MadXConfig(block="prefix"), languages=["en"], tasks={"mlm": None, "pos": 3})


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_prefixes_are_the_same_with_every_attention_that_is_supported(family, load_example, monkeypatch):
    """Each takes masks in a form of its own; others are refused, and an error leaves the model as it was."""
    load_example("own_prefix")
    backbone, inputs = tiny_backbone(family), tiny_inputs(family, len(ROWS))
    model = Model(backbone, LangAdaptersConfig(block="prefix"), languages=LANGUAGES, tasks=["mt"]).eval()
    outputs = []
    with torch.no_grad():
        for name in ("sdpa", "eager"):
            backbone.model.set_attn_implementation(name)
            outputs.append(model(inputs, ROWS).logits)
        torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)
        bare = backbone(**inputs).logits
        assert not torch.allclose(bare, outputs[1])
        monkeypatch.setattr(attention, "SUPPORTED", ("sdpa",))
        with pytest.raises(BackboneError, match=r"cannot be added with the attention 'eager'.*one of sdpa\."):
            model(inputs, ROWS)
        assert torch.equal(backbone(**inputs).logits, bare)


def test_an_error_within_the_attention_leaves_the_backbone_as_it_was(load_example):
    load_example("own_prefix")
    model, inputs = model_with("prefix", "llama", adapter_size=3), tiny_inputs("llama", len(ROWS))
    with torch.no_grad():
        mixed, bare = model(inputs, ROWS).logits, model.backbone(**inputs).logits

    def fail(*_):
        raise MemoryError

    queries = next(m for name, m in model.backbone.model.named_modules() if name.endswith("self_attn.q_proj"))
    hook = queries.register_forward_hook(fail)
    for again, expected in ((lambda: model(inputs, ROWS), mixed), (lambda: model.backbone(**inputs), bare)):
        with pytest.raises(MemoryError):
            model(inputs, ROWS)
        hook.remove()
        with torch.no_grad():
            assert torch.equal(again().logits, expected)
        hook = queries.register_forward_hook(fail)
    hook.remove()
