"""Thousands of languages: constant numbers of tensors, constant cost of growth, one batched generation."""

import json

import pytest
import torch

from polyloom.conditions import Inventory
from polyloom.methods import METHODS, build_method
from polyloom.weights import BackboneShape, Site
from tests.contracts.tiny import LANGUAGES, ROWS, logits, tiny_inputs, tiny_model
from tests.shared import start_benchmark

LARGE = BackboneShape(
    "xlm-roberta", 1024, tuple(Site("encoder", i) for i in range(24)), ("layer", "output", "norm"),
    {"q": (1024, 1024), "v": (1024, 1024)},
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_thousand_languages_and_two_hundred_tasks_need_no_more_tensors_than_one(method):
    def tensors(languages: int, tasks: int) -> int:
        world = Inventory.of((f"l{i}" for i in range(languages)), {f"t{i}": 5 for i in range(tasks)})
        with torch.device("meta"):
            built = build_method(METHODS[method].config_type(), shape=LARGE, inventory=world)
        return len(list(built.parameters()))

    assert tensors(1000, 200) == tensors(2, 1)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("full", "dense")])
@pytest.mark.parametrize("family", ["bert", "m2m_100"])
def test_growth_leaves_all_other_outputs_bitwise_as_they_were(method, family):
    model, inputs = tiny_model(method, family), tiny_inputs(family)
    with torch.no_grad():
        before = logits(model, inputs, ROWS)
        model.method.add_language("gn")
        model.method.add_language("br", like="tr")
        model.method.add_task("dep", labels=2)
        model.method.add_direction("en", "gn")
        model.method.add_direction("en", "br", like="en/tr")
        assert torch.equal(before, logits(model, inputs, ROWS))
        row = {name: tensor[:1] for name, tensor in inputs.items()}
        assert torch.equal(logits(model, row, ["pos/en/br"]), logits(model, row, ["pos/en/tr"]))
        logits(model, row, ["dep/en/gn"])
    assert tuple(model.method.languages) == (*LANGUAGES, "gn", "br")


def test_a_bank_moves_seldom_while_it_grows():
    method = tiny_model("lang-adapters", "bert").method
    places = set()
    for number in range(300):
        method.add_language(f"new{number}")
        places.add(method.get_parameter("adapters.down").data_ptr())
    assert len(places) <= 7


@pytest.mark.timing
def test_the_scale_benchmark_holds(tmp_path):
    """Adding the 300th language against the first, and batched against single generation; ratios in one run."""
    output = tmp_path / "generation.json"
    start_benchmark("generation", "--tiny", "--rounds", 8, "--json", output)
    measured = json.loads(output.read_text())
    assert measured["adding"][0]["ratio"] <= 1.2
    assert measured["generating"][0]["speedup"] >= 3.0


@pytest.mark.timing
def test_a_step_of_training_costs_no_more_with_a_bank_of_many_languages(tmp_path):
    """G14 wants 1.1 at full size (`benchmarks.training banks`); dense gradients cost several times more."""
    output = tmp_path / "banks.json"
    start_benchmark("training", "banks", "--tiny", "--rounds", 20, "--json", output)
    assert json.loads(output.read_text())["step_over_step"] < 1.2
