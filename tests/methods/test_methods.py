"""What is particular to a method: its options do what they say."""

import math
from dataclasses import fields, replace

import pytest
import torch

from polyloom.backbones import backbone_from_config
from polyloom.conditions import Inventory
from polyloom.errors import BackboneError, ConditionError, ConfigError
from polyloom.methods import METHODS, build_method
from polyloom.methods.base import AdapterMethod
from polyloom.methods.hyper_adapters import HyperAdaptersConfig
from polyloom.methods.psf import Psf
from polyloom.model import Model
from polyloom.nn.blocks import LORA
from polyloom.weights import Site, Weights
from tests.contracts.tiny import (
    CONFIGS,
    LANGUAGES,
    ROWS,
    TASKS,
    logits,
    shared_backbone,
    tiny_backbone,
    tiny_config,
    tiny_inputs,
    tiny_model,
)


def at_sites(weights: Weights) -> dict[Site, torch.Tensor]:
    block = weights.blocks[0]
    return {site: tensors["down"] for site, tensors in zip(block.sites, block.by_site(), strict=True)}


@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        (("source", "target"), ("target",)),
        (("source", "target"), ("source", "target")),
        (("source",), ("target",)),
        (("target",), ("source",)),
        ((), ()),
    ],
)
def test_hyper_adapters_depend_on_the_inputs_that_are_not_masked_and_on_no_others(encoder, decoder):
    model = tiny_model("hyper-adapters", "m2m_100", encoder_inputs=encoder, decoder_inputs=decoder)
    base = at_sites(model.weights(["mt/en/tr"]))
    changed = {"source": at_sites(model.weights(["mt/yo/tr"])), "target": at_sites(model.weights(["mt/en/no"]))}
    for site, tensor in base.items():
        inputs = encoder if site.stack == "encoder" else decoder
        for name, other in changed.items():
            assert torch.equal(tensor, other[site]) == (name not in inputs), (site, name)


def test_hyper_adapters_rescale_divides_everything_generated_by_the_root_of_the_width():
    with_, without = (tiny_model("hyper-adapters", "bert", rescale=rescale) for rescale in (True, False))
    for name, tensor in with_.weights(["mt/en"]).blocks[0].tensors.items():
        plain = without.weights(["mt/en"]).blocks[0].tensors[name]
        gain = 1.0 if name == "norm_weight" else 0.0
        torch.testing.assert_close((tensor - gain) * 9**0.5, plain - gain)


def test_hyper_adapters_dropout_acts_in_training_alone():
    model = tiny_model("hyper-adapters", "bert", dropout=0.5)
    one, other = (model.weights(["mt/en"]).blocks[0].tensors["down"] for _ in range(2))
    assert torch.equal(one, other)
    model.train()
    one, other = (model.weights(["mt/en"]).blocks[0].tensors["down"] for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("block", ["bottleneck", "lora"])
@pytest.mark.parametrize("method", ["lang-adapters", "pair-adapters", "hyper-adapters"])
def test_adapters_that_start_as_identity_change_nothing_at_first_but_can_learn(method, block):
    config, pairs = tiny_config(method, init="identity", block=block), [row.partition("/")[2] for row in ROWS]
    backbone = tiny_backbone("m2m_100").eval()
    model = Model(backbone, config, languages=LANGUAGES, tasks=list(TASKS), directions=pairs)
    inputs = tiny_inputs("m2m_100")
    with torch.no_grad():
        assert torch.equal(model(inputs, ROWS).logits, model.backbone(**inputs).logits)
    model(inputs, ROWS).logits.square().sum().backward()
    own = model.method.groups()
    trainable = own.get("adapters", own.get("hypernetwork", []))
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in trainable)


def test_linear_hyper_adapters_of_a_mean_of_languages_are_the_mean_of_theirs():
    model = tiny_model("hyper-adapters", "bert", linear=True, num_blocks=0)
    one, other = (model.weights([f"mt/{language}"]).blocks[0].tensors for language in ("en", "tr"))
    table = model.method.get_parameter("embeddings.language.weight")
    assert LANGUAGES[:2] == ("en", "tr")
    with torch.no_grad():
        table[0] = (table[0] + table[1]) / 2
    for name, tensor in model.weights(["mt/en"]).blocks[0].tensors.items():
        torch.testing.assert_close(tensor, (one[name] + other[name]) / 2)


@pytest.mark.parametrize("family", ["bert", "m2m_100", "llama"])
def test_madx_can_leave_the_language_adapter_out_of_each_stacks_last_layer(family):
    model = tiny_model("madx", family, drop_last_layer=True)
    language, task = model.weights(["pos/en"]).blocks[:2]
    assert {site.layer for site in language.sites} == {0}
    assert task.sites == model.backbone.shape.sites
    logits(model, tiny_inputs(family), ROWS)


def test_madx_shares_the_language_adapter_between_tasks_and_the_task_adapter_between_languages():
    model = tiny_model("madx", "bert")
    weights = {row: model.weights([row]) for row in ("pos/en", "ner/en", "pos/tr")}
    language, task = ({row: w.blocks[i].tensors["up"] for row, w in weights.items()} for i in (0, 1))
    assert torch.equal(language["pos/en"], language["ner/en"])
    assert not torch.equal(language["pos/en"], language["pos/tr"])
    assert torch.equal(task["pos/en"], task["pos/tr"])
    assert not torch.equal(task["pos/en"], task["ner/en"])


@pytest.mark.parametrize("typology", [False, True])
@pytest.mark.parametrize("depth", [None, 0, 1, 2])
def test_hyperx_lets_as_many_layers_know_the_language_as_it_is_told(depth, typology):
    model = tiny_model("hyperx", "bert", language_layers=depth, typology=typology)
    here, there = (at_sites(model.weights([condition])) for condition in ("pos/en", "pos/tr"))
    for site in here:
        assert torch.equal(here[site], there[site]) == (depth is not None and site.layer >= depth), site


def test_hyperx_can_generate_a_layer_norm():
    tensors = tiny_model("hyperx", "bert", norm="before").weights(["pos/en"]).blocks[0].tensors
    assert {"norm_weight", "norm_bias"} <= tensors.keys()


def test_psf_samples_in_training_and_takes_the_mean_otherwise():
    model = tiny_model("psf", "bert")
    one, other = (model.weights(["pos/en"]).block("classifier").tensors["weight"] for _ in range(2))
    assert torch.equal(one, other)
    model.train()
    one, other = (model.weights(["pos/en"]).block("classifier").tensors["weight"] for _ in range(2))
    assert not torch.equal(one, other)


def test_psf_samples_from_a_normal_that_starts_narrow():
    config, inventory = tiny_config("psf", latent_size=500), Inventory.of(LANGUAGES, TASKS)
    method = build_method(config, shape=shared_backbone("bert").shape, inventory=inventory).train()
    assert isinstance(method, Psf)
    for kind in ("task", "language"):
        mean, logvar = (method.get_parameter(f"latents.{kind}_{part}.weight").detach() for part in ("mean", "logvar"))
        assert float(mean.std()) == pytest.approx(0.1, rel=0.1)
        assert (logvar == -4).all()
        drawn = method._sample(kind, torch.zeros(1, dtype=torch.long)).detach() - mean[0]
        assert float(drawn.std()) == pytest.approx(math.exp(-4 / 2), rel=0.15)


def test_psf_penalty_is_the_divergence_from_a_standard_normal():
    model = tiny_model("psf", "bert")
    ids = model.method.encode(["pos/en", "ner/tr"])
    expected = torch.zeros(())
    for kind, rows in (("task", [0, 1]), ("language", [0, 1])):
        mean, logvar = (
            model.method.get_parameter(f"latents.{kind}_{part}.weight")[rows] for part in ("mean", "logvar")
        )
        latent = torch.distributions.Normal(mean, torch.exp(0.5 * logvar))
        standard = torch.distributions.Normal(0.0, 1.0)
        expected = expected + torch.distributions.kl_divergence(latent, standard).sum(-1).mean()
    penalty = model.method.penalty(ids)
    assert penalty is not None
    torch.testing.assert_close(penalty, expected)


def test_psf_generates_more_than_a_linear_function_of_its_vectors():
    method = tiny_model("psf", "bert", latent_size=8).method
    assert isinstance(method, Psf)
    vector = torch.randn(1, 2 * 8)
    zero, once, twice = (method.generator(factor * vector) for factor in (0.0, 1.0, 2.0))
    assert not torch.allclose(twice - zero, 2 * (once - zero))


def test_a_task_that_is_like_another_starts_with_its_vectors():
    method = tiny_model("psf", "bert").method
    tables = [method.get_parameter(f"latents.task_{part}.weight") for part in ("mean", "logvar")]
    torch.nn.init.normal_(tables[1])  # all are equal at first
    method.add_task("dep", labels=3, like="ner")
    for table in tables:
        new, like, other = (table[method.tasks.row(task)] for task in ("dep", "ner", "pos"))
        assert torch.equal(new, like)
        assert not torch.equal(new, other)


def test_psf_never_predicts_a_label_that_a_task_lacks():
    model = tiny_model("psf", "bert")
    tensors = model.weights(["pos/en", "ner/en"]).block("classifier").tensors
    assert torch.isfinite(tensors["bias"][0]).all()
    assert torch.isinf(tensors["bias"][1, 0, 3:]).all()
    with pytest.raises(ConditionError, match="6 labels, but this generator has at most 5"):
        model.method.add_task("dep", labels=6)


@pytest.mark.parametrize("name", ["madx", "lang-adapters", "hyperx", "hyper-stack"])
def test_a_language_that_is_like_several_starts_as_their_mean(name):
    method = tiny_model(name, "m2m_100").method
    method.add_language("xx", like=["sw", "no"])
    sw, no, new = (method.languages.row(language) for language in ("sw", "no", "xx"))
    tables = method.growing("language")
    assert tables
    for table in tables:
        for parameter in table.parameters():
            rows = parameter.unflatten(0, (-1, table.rows_per_key))
            torch.testing.assert_close(rows[new], (rows[sw] + rows[no]) / 2)


@pytest.mark.parametrize("method", METHODS)
def test_sizes_are_positive(method):
    """An embedding of no numbers would say nothing of its language, and no loss would tell."""
    config = tiny_config(method)
    for setting in {field.name for field in fields(config)} - {"stored_size"}:  # of which 0 means none
        if setting.endswith("_size"):
            with pytest.raises(ConfigError, match=f"{setting}: 0 is not positive"):
                replace(config, **{setting: 0})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_says_what_it_trains_and_where_it_comes_from(method):
    model = tiny_model(method, "bert")
    assert model.method.paper
    assert model.method.summary
    for stage in model.method.stages():
        assert set(stage.trains) <= {*model.groups(), "heads"}
    if isinstance(model.method, AdapterMethod):
        assert model.weights(["pos/en/tr"]).num_parameters() > 0


def test_stages_have_the_names_that_recipes_use_and_the_data_of_the_papers():
    def stages(method: str, **settings) -> str:
        found = tiny_model(method, "bert", **settings).method.stages()
        return ", ".join(f"{stage.name}: {stage.tasks}" for stage in found)

    stacked = "languages: raw-text, tasks: labelled"
    for method in ("madx", "badx", "multilingual"):
        assert stages(method) == f"head: raw-text, {stacked}"
    assert stages("madx", language_adapters=False, invertible=False) == "tasks: labelled"
    assert stages("hyper-stack") == stacked
    assert stages("psf") == "joint: labelled"
    for method in ("full", "dense", "hyperx", "hyper-adapters", "lang-adapters", "pair-adapters"):
        assert stages(method) == "joint: all"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"adapter_size": 0}, "adapter_size: 0"),
        ({"dropout": 1.0}, "dropout: 1.0"),
        ({"num_blocks": -1}, "num_blocks"),
        ({"linear": True}, "num_blocks: 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config("hyper-adapters", **settings)


def test_a_condition_may_not_be_listed_twice_in_weights():
    with pytest.raises(ConditionError, match="listed twice"):
        tiny_model("hyperx", "bert").method.weights(["pos/en", "pos/en"])


def test_a_world_needs_a_language():
    from polyloom.conditions import Inventory

    with pytest.raises(ConditionError, match="at least one language"):
        Inventory.of([], ["pos"])


def test_default_settings_are_the_papers():
    config = HyperAdaptersConfig()
    assert (config.encoder_inputs, config.decoder_inputs) == (("source", "target"), ("target",))
    assert (config.rescale, config.num_blocks, config.embedding_size) == (True, 2, 50)


def test_raw_text_passes_the_task_adapters_of_stacked_methods_unchanged():
    for method in ("madx", "badx", "multilingual"):
        backbone = shared_backbone("bert")
        model = Model(backbone, tiny_config(method), languages=["en", "tr"], tasks=["mlm", "pos"])
        rows = ["mlm/en/tr", "pos/en/tr"] if method == "badx" else ["mlm/tr", "pos/tr"]
        task_block = model.method.weights(rows).blocks[1]
        changes = task_block.tensors["up"].flatten(1).abs().amax(1)
        assert changes[0] == 0.0
        assert changes[1] > 0.0


@pytest.mark.parametrize("method", ["madx", "badx", "multilingual", "hyper-stack"])
def test_stacked_methods_hold_task_adapters_only_for_tasks_with_labels(method):
    model = Model(shared_backbone("bert"), tiny_config(method), languages=["en", "tr"], tasks=["mlm"])
    assert "task_adapters" not in model.method.groups()
    row = "en/tr" if method == "badx" else "tr"
    before = model.method.weights([f"mlm/{row}"])
    model.method.add_task("pos", labels=3)
    after = model.method.weights([f"mlm/{row}", f"pos/{row}"])
    assert len(after.blocks) == len(before.blocks) + 1
    changes = after.blocks[1].tensors["up"].flatten(1).abs().amax(1)
    assert changes[0] == 0.0
    assert changes[1] > 0.0
    assert "task_adapters" in model.method.groups()


@pytest.mark.parametrize("languages", [["pos/en"], ["pos/en", "pos/tr"]])
def test_gradients_of_all_sites_are_gathered_in_one_go(languages):
    """Taken one by one, each site's gradient would be filled up with zeros to the size of all: sites squared."""
    (block,) = tiny_model("hyperx", "bert").method.weights(languages).blocks
    for tensors in block.by_site():
        assert {type(tensor.grad_fn).__name__ for tensor in tensors.values()} == {"UnbindBackward0"}


def test_lora_adapts_the_linear_layers_that_are_named():
    shape = tiny_backbone("llama").shape
    assert list(LORA.restrict(shape, None).projections) == ["q", "v"]
    assert list(shape.with_targets("down").projections) == ["down"]
    assert list(shape.with_targets("all-linear").projections) == ["q", "k", "v", "o", "gate", "up", "down"]
    method = tiny_model("hyperx", "llama", block="lora", targets=("down", "q")).method
    (block,) = method.weights(["pos/en"]).blocks
    sizes = {name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()}
    assert sizes == {"q_down": (6, 16), "q_up": (16, 6), "down_down": (6, 24), "down_up": (16, 6)}
    with pytest.raises(BackboneError, match="bert has no linear layer 'gate'"):
        tiny_model("hyperx", "bert", block="lora", targets=("gate",))
    with pytest.raises(ConfigError, match=r"method\.alpha: a bottleneck block has no such setting.*has it: lora"):
        tiny_config("hyperx", alpha=4.0)


@pytest.mark.parametrize(("settings", "scaling"), [({}, 1.0), ({"alpha": 3.0}, 0.5), ({"rslora": True}, 6**0.5)])
@pytest.mark.parametrize("method", ["hyperx", "lang-adapters"])
def test_the_scaling_of_lora_is_part_of_its_weights(method, settings, scaling):
    plain = tiny_model(method, "llama", block="lora").method
    scaled = tiny_model(method, "llama", block="lora", **settings).method
    (before,), (after,) = (made.weights(["pos/en/tr"]).blocks for made in (plain, scaled))
    for name, tensor in before.tensors.items():
        torch.testing.assert_close(after.tensors[name], tensor * (scaling if name.endswith("_up") else 1.0))


def test_lora_leaves_projections_alone_that_rows_have_in_common():
    settings = CONFIGS["deberta-v2"] | {"model_type": "deberta-v2", "share_att_key": True}
    backbone = backbone_from_config(settings)
    model = tiny_model("hyperx", "deberta-v2", backbone=backbone, block="lora", targets="all-linear")
    assert list(model.backbone.shape.projections) == ["v", "o", "up", "down"]
    inputs = tiny_inputs("deberta-v2")
    together = logits(model, inputs, ROWS)
    for number, row in enumerate(ROWS):
        alone = logits(model, {name: tensor[number : number + 1] for name, tensor in inputs.items()}, [row])
        seen = inputs["attention_mask"][number] == 1
        torch.testing.assert_close(together[number][seen], alone[0][seen], rtol=1e-4, atol=1e-4)
    with pytest.raises(BackboneError, match="deberta-v2 has no linear layer 'q'"):
        tiny_model("hyperx", "deberta-v2", backbone=backbone, block="lora", targets="q")
