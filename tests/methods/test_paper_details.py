"""Details of the papers that decide results: which parts are trained, and how adapters begin."""

import pytest
import torch
from torch import nn

from polyloom.backbones import FAMILIES, Backbone, backbone_from_config
from polyloom.conditions import Inventory
from polyloom.methods import build_method
from polyloom.model import Model
from polyloom.nn.blocks import BLOCKS
from tests.contracts.tiny import LANGUAGES, ROWS, logits, tiny_backbone, tiny_config, tiny_inputs, tiny_model

HEADS = {
    "bert": {"cls.predictions.bias", "cls.predictions.transform.LayerNorm.bias"},
    "xlm-roberta": {"lm_head.bias", "lm_head.dense.weight", "lm_head.layer_norm.weight"},
    "distilbert": {"vocab_transform.weight", "vocab_layer_norm.bias", "vocab_projector.bias"},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_what_lies_between_the_base_model_and_the_projection_to_the_vocabulary(family):
    backbone = tiny_backbone(family)
    head = backbone.head_parameters()
    assert HEADS.get(family, set()) <= head.keys()
    base = {id(p) for p in backbone.model.base_model.parameters()}
    assert not any(id(parameter) in base for parameter in head.values())
    assert not any(parameter is backbone.model.get_output_embeddings().weight for parameter in head.values())


@pytest.mark.parametrize(
    ("method", "trained", "frozen"),
    [("hyperx", ["joint"], []), ("madx", ["head"], ["languages", "tasks"]), ("badx", ["head"], ["languages", "tasks"])],
)
def test_the_head_is_trained_in_these_stages(method, trained, frozen):
    model = tiny_model(method, "bert", backbone=tiny_backbone("bert"))
    assert [stage.name for stage in model.stages()] == trained + frozen
    for stage in model.stages():
        model.set_stage(stage)
        assert {p.requires_grad for p in model.group("backbone.head")} == {stage.name in trained}
    without = tiny_model(method, "bert", backbone=tiny_backbone("bert"), train_head=False)
    assert not any("backbone.head" in stage.trains for stage in without.stages())


def test_a_backbone_without_a_head_to_train_has_no_stage_for_it():
    assert [stage.name for stage in tiny_model("madx", "m2m_100").stages()] == ["languages", "tasks"]


def test_a_trained_head_of_a_backbone_in_bf16_is_in_fp32_and_gets_gradients():
    backbone = tiny_backbone("bert")
    expected, inputs = tiny_model("hyperx", "bert", backbone=backbone), tiny_inputs("bert")
    with torch.no_grad():
        exact = expected(inputs, ROWS).logits
    half = tiny_backbone("bert")
    half.model.to(torch.bfloat16)
    model = tiny_model("hyperx", "bert", backbone=half)
    assert {p.dtype for p in model.group("backbone.head")} == {torch.float32}
    hidden = torch.randn(5, 1, half.shape.width)
    for candidates in (None, torch.tensor([3, 5, 8])):
        model.backbone.vocabulary(hidden, candidates).float().sum().backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.group("backbone.head"))
    with torch.no_grad():
        torch.testing.assert_close(model(inputs, ROWS).logits.float(), exact, atol=0.1, rtol=0.1)


def test_hyperx_with_a_norm_after_adds_a_normed_output_with_the_generated_gain():
    model = tiny_model("hyperx", "bert", norm="after")
    tensors = {name: t[0, 0] for name, t in model.weights(["pos/en"]).blocks[0].tensors.items()}
    hidden = torch.randn(2, 3, model.backbone.shape.width)
    added = BLOCKS["bottleneck"].apply(hidden, hidden, tensors, place="output") - hidden
    inner = torch.relu(hidden @ tensors["down"].T + tensors["down_bias"]) @ tensors["up"].T + tensors["up_bias"]
    normed = (inner - inner.mean(-1, keepdim=True)) / (inner.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(added, normed * tensors["out_norm_weight"] + tensors["out_norm_bias"])


def test_what_a_fresh_hyperx_adapter_with_a_norm_after_adds_is_bounded_by_its_gain():
    torch.manual_seed(0)
    backbone, inventory = tiny_backbone("bert"), Inventory.of(LANGUAGES, {"pos": 3})
    method = build_method(tiny_config("hyperx", norm="after"), shape=backbone.shape, inventory=inventory)
    gain = method.weights(["pos/en"]).blocks[0].tensors["out_norm_weight"]
    assert gain.abs().max() < 0.1, "a plain gain, not one plus what is generated"
    assert gain.abs().max() > 0


def one_layer(width: int) -> Backbone:
    """A translation model from scratch with one layer per stack."""
    sizes = {f"{stack}_{part}": size for stack in ("encoder", "decoder") for part, size in (
        ("layers", 1), ("ffn_dim", 4 * width), ("attention_heads", max(1, width // 64)))}  # fmt: skip
    return backbone_from_config({"model_type": "m2m_100", "vocab_size": 500, "d_model": width, **sizes})


@pytest.mark.parametrize("width", [32, 64, 128, 256, 512, 1024])
@pytest.mark.parametrize("method", ["lang-adapters", "pair-adapters", "hyper-adapters"])
def test_adapters_begin_no_stronger_than_the_layer_they_follow(method, width):
    """Before, the layer added 0.02 to a stream of 0.6 at width 32, a fresh language adapter 0.7."""
    torch.manual_seed(0)
    backbone = one_layer(width)
    with torch.no_grad():
        states = backbone.model.get_encoder()(
            input_ids=torch.randint(4, 500, (4, 20)), output_hidden_states=True
        ).hidden_states
        entered = states[0]
        # The recorded output of the last layer has passed the final norm of the encoder; the layer itself has not.
        left = backbone.layers[0](entered, None)
        layer = (left - entered).std()
        assert 0.3 < layer / entered.std() < 1.0
        papers = {"hyper-adapters": "default"}.get(method, "xavier")
        for init, most in (("identity", 0.0), (papers, 1.3 * float(layer))):
            config = tiny_config(method, adapter_size=width // 4, init=init)
            inventory = Inventory.of(("en", "de"), {"mt": None}, ["en/de"])
            weights = build_method(config, shape=backbone.shape, inventory=inventory).weights(["mt/en/de"])
            tensors = {name: t[0, 0] for name, t in weights.blocks[0].tensors.items()}
            added = BLOCKS["bottleneck"].apply(left, left, tensors, place="layer") - left
            assert added.std() <= most, (init, float(added.std()), float(layer))


@pytest.mark.parametrize("method", ["lang-adapters", "pair-adapters", "hyper-adapters"])
def test_translation_adapters_begin_as_identity_by_default(method):
    backbone, inputs = tiny_backbone("m2m_100"), tiny_inputs("m2m_100")
    directions = [row.partition("/")[2] for row in ROWS]
    model = Model(backbone, tiny_config(method), languages=LANGUAGES, tasks=["pos", "ner", "mt"], directions=directions)
    with torch.no_grad():
        assert torch.equal(logits(model.eval(), inputs, ROWS), backbone(**inputs).logits)


def test_embeddings_of_a_translation_model_from_scratch_have_length_one_after_scaling():
    backbone = one_layer(128)
    embeddings = backbone.model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    kept = torch.arange(len(embeddings.weight)) != embeddings.padding_idx
    assert abs(embeddings.weight[kept].std().item() * 128**0.5 - 1) < 0.02
    assert not embeddings.weight[embeddings.padding_idx].any()
    assert backbone.model.get_output_embeddings().weight is embeddings.weight


def test_sinusoidal_positions_stay_as_they_are():
    positions = tiny_backbone("marian").model.get_submodule("model.encoder.embed_positions").weight
    assert not positions.requires_grad
    assert torch.equal(positions[0], (torch.arange(len(positions[0])) >= len(positions[0]) // 2).float())


def test_badx_has_task_adapters_of_their_own_for_every_pair():
    model = tiny_model("badx", "bert", backbone=tiny_backbone("bert"))
    task = {row: model.weights([row]).blocks[1].tensors["up"] for row in ("pos/en/tr", "pos/yo/no", "ner/tr/sw")}
    assert len({tuple(tensor.flatten().tolist()) for tensor in task.values()}) == 3
    inputs = tiny_inputs("bert")
    model.set_stage(model.stages()[-1])
    logits(model, inputs, ["pos/en/tr"] * len(ROWS)).square().mean().backward()
    grid = model.method.get_parameter("task_adapters.up")
    assert grid.grad is not None
    changed = grid.grad.flatten(1).any(1).nonzero().squeeze(1).tolist()
    tasks, pairs = list(model.method.tasks), list(model.method.directions)
    assert [(tasks[row // len(pairs)], pairs[row % len(pairs)]) for row in changed] == [("pos", "en/tr")]


def test_task_adapters_of_raw_text_have_no_effect_on_pairs_that_are_added():
    inventory = Inventory.of(LANGUAGES, {"mlm": None, "pos": 3}, ["en/tr"], ["mlm"])
    method = build_method(tiny_config("badx"), shape=tiny_backbone("bert").shape, inventory=inventory)
    method.add_direction("en", "sw")
    method.add_task("ner", labels=3, like="pos")
    method.add_direction("en", "yo", like="en/sw")
    for pair in ("en/tr", "en/sw", "en/yo"):
        assert not method.weights([f"mlm/{pair}"]).blocks[1].tensors["up"].any()
    up = {row: method.weights([row]).blocks[1].tensors["up"] for row in ("pos/en/sw", "ner/en/sw", "ner/en/yo")}
    assert torch.equal(up["pos/en/sw"], up["ner/en/sw"])
    assert torch.equal(up["ner/en/sw"], up["ner/en/yo"])
    assert up["pos/en/sw"].any()


def test_madx_without_language_adapters_is_task_adapters_alone():
    model = tiny_model("madx", "bert", language_adapters=False, invertible=False)
    assert [stage.name for stage in model.stages()] == ["tasks"]
    assert len(model.weights(["pos/en"]).blocks) == 1
    inputs = tiny_inputs("bert")
    with torch.no_grad():
        same = [logits(model, inputs, [f"pos/{language}"] * len(ROWS)) for language in ("en", "tr")]
    assert torch.equal(*same)
    kept = tiny_model("madx", "bert", language_adapters=False)
    assert kept.stages()[1].trains == ("invertible_adapters",)


def test_full_fine_tuning_can_see_raw_text_first():
    stages = tiny_model("full", "bert", backbone=tiny_backbone("bert"), raw_text_first=True).stages()
    assert [(stage.name, stage.tasks) for stage in stages] == [("text", "raw-text"), ("tasks", "labelled")]
