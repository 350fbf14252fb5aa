"""Hyper-Stack: languages begin alike, the scale of an embedding is without effect, tasks leave languages alone."""

import pytest
import torch

from polyloom.conditions import Inventory
from polyloom.errors import ConfigError
from polyloom.methods import build_method
from polyloom.methods.hyper_stack import HyperStackConfig
from tests.contracts.tiny import tiny_model

SHAPE = tiny_model("hyper-stack", "bert").backbone.shape
INVENTORY = Inventory.of(["en", "sw"], {"mlm": None, "pos": 5}, None, ["mlm"])


def fresh(**settings):
    return build_method(HyperStackConfig(adapter_size=6, **settings), shape=SHAPE, inventory=INVENTORY)


def perturbed(**settings):
    """Build a method whose hypernetwork generates differences, as after training."""
    method = fresh(**settings)
    with torch.no_grad():
        for linear in method.hypernetwork.projections.linears.values():
            linear.weight.normal_(std=0.1)
    return method


def language_block(method, condition):
    return method.weights([condition]).blocks[0].tensors


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_all_languages_begin_with_the_common_adapter():
    method = fresh()
    common = dict(method.common_adapter.named_parameters())
    for language in ("en", "sw"):
        assert same(language_block(method, f"pos/{language}"), common)
    method = perturbed()
    assert not same(language_block(method, "pos/en"), language_block(method, "pos/sw"))


def test_a_language_has_the_common_adapter_plus_what_the_heads_generate():
    method = perturbed()
    assert method.inventory() == INVENTORY
    inputs = method.hypernetwork.trunk(method.vectors(method.keys(method.encode(["pos/sw"]), method.language_sites)))
    common = dict(method.common_adapter.named_parameters())
    for name, tensor in language_block(method, "pos/sw").items():
        difference = inputs @ method.hypernetwork.projections.linears[name].weight.T
        torch.testing.assert_close(tensor, common[name] + difference.view_as(tensor))


def test_the_size_of_an_embedding_does_not_change_what_is_generated():
    method = perturbed()
    before = language_block(method, "pos/en")
    with torch.no_grad():
        method.embeddings["language"].weight.mul_(100.0)
    after = language_block(method, "pos/en")
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-3, atol=1e-4)


def test_a_task_depends_on_no_language_and_a_language_on_no_task():
    method = perturbed()
    first, second = (method.weights([name]).blocks for name in ("pos/en", "pos/sw"))
    assert same(first[-1].tensors, second[-1].tensors)
    assert same(language_block(method, "pos/en"), language_block(method, "mlm/en"))


def test_the_stage_of_tasks_trains_nothing_that_depends_on_languages():
    model = tiny_model("hyper-stack", "bert", stored_size=2)
    languages, tasks = model.stages()
    assert languages.trains == ("common_adapter", "hypernetwork", "embeddings", "language_adapters", "backbone.head")
    assert tasks.trains == ("task_adapters", "heads")
    model.set_stage(tasks)
    trained = {name for name, parameter in model.method.named_parameters() if parameter.requires_grad}
    assert {name.partition(".")[0] for name in trained} == {"task_adapters"}


def test_language_dropout_gives_labelled_data_the_adapter_of_any_language_while_training():
    method = perturbed(language_dropout=0.999)
    torch.manual_seed(0)
    drawn = {task: [language_block(method, f"{task}/en") for _ in range(20)] for task in ("mlm", "pos")}
    method.eval()
    own = {name: language_block(method, f"pos/{name}") for name in method.languages}
    found = {
        task: {name for name, block in own.items() if any(same(block, one) for one in blocks)}
        for task, blocks in drawn.items()
    }
    assert found == {"mlm": {"en"}, "pos": set(method.languages)}


def test_a_language_costs_its_embedding_and_what_it_stores():
    for stored in (0, 2):
        method = fresh(stored_size=stored, embedding_size=10)
        before = sum(parameter.numel() for parameter in method.parameters())
        method.add_language("xx")
        added = sum(parameter.numel() for parameter in method.parameters()) - before
        adapter = len(SHAPE.sites) * (2 * SHAPE.width * stored + stored + SHAPE.width) if stored else 0
        assert added == 10 + adapter
        assert len(method.weights(["pos/xx"]).blocks) == (3 if stored else 2)


@pytest.mark.parametrize(
    ("settings", "mistake"),
    [
        ({"projection_size": 0}, "projection_size: 0 is not positive"),
        ({"stored_size": -1}, "stored_size: -1 is negative"),
        ({"language_dropout": 1.0}, "language_dropout: 1.0 is not in"),
        ({"language_adapters": False}, "language_adapters"),
    ],
)
def test_impossible_settings_are_refused(settings, mistake):
    with pytest.raises(ConfigError, match=mistake):
        HyperStackConfig(**settings)


@pytest.mark.parametrize("block", ["bottleneck", "lora"])
def test_units_have_one_factor_each(block):
    method = fresh(block=block, generated="units")
    with torch.no_grad():
        for parameter in method.common_adapter.parameters():
            parameter.normal_()
    common = dict(method.common_adapter.named_parameters())
    assert same(language_block(method, "pos/en"), common), "all languages begin with the common adapter"
    with torch.no_grad():
        for linear in method.hypernetwork.projections.linears.values():
            linear.weight.normal_(std=0.1)
    one, other = (language_block(method, f"pos/{language}") for language in ("en", "sw"))
    ups = [name for name in common if name == "up" or name.endswith("_up")]
    assert ups
    for name, tensor in common.items():
        if name not in ups:
            assert torch.equal(one[name], tensor)
            continue
        ratio = one[name] / tensor
        torch.testing.assert_close(ratio, ratio[..., :1, :].expand_as(ratio), rtol=1e-3, atol=1e-3)
        assert not torch.equal(one[name], other[name])
    numbers = sum(linear.weight.numel() for linear in method.hypernetwork.projections.linears.values())
    assert numbers == method.config.projection_size * len(ups) * method.config.adapter_size
