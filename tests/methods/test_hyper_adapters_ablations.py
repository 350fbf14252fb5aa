"""Every variant of Tables 5 and 6 of Hyper-Adapters can be built and planned, has the parameters one expects, and its
dropout acts on what the hypernetwork learns from, never on what is scored or written out."""

from typing import Any

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.config.build import empty_backbone
from polyloom.export.adapter import generate_adapters
from polyloom.methods import build_method
from polyloom.model import Model
from polyloom.training.parameter_report import language_shares, weight_std
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_training, train_recipe
from tests.contracts.tiny import LANGUAGES, tiny_backbone, tiny_config, tiny_model
from tests.reliability.tiny import tiny_loop
from tests.tiny_run import tiny_recipe

WIDTH, BOTTLENECK, LAYERS, HIDDEN, EMBEDDING = 512, 128, 12, 612, 50  # Transformer-Base, hyper-adapters (base)
GENERATED = 2 * WIDTH * BOTTLENECK + BOTTLENECK + WIDTH + 2 * WIDTH  # projections, biases, layer norm
BLOCK = 2 * HIDDEN + 2 * (HIDDEN**2 + HIDDEN)  # layer norm, two layers
INPUTS = {"s": ("source",), "t": ("target",), "st": ("source", "target")}
TABLE_5: dict[str, tuple[dict[str, Any], int]] = {
    "linear": ({"linear": True, "num_blocks": 0}, 0),
    "non-linear": ({"num_blocks": 0}, 0),
    "non-linear, two blocks": ({}, 2),
}
TABLE_6: dict[str, tuple[dict[str, Any], int]] = {
    f"enc={encoder} dec={decoder} dropout={dropout}": (
        {"encoder_inputs": list(INPUTS[encoder]), "decoder_inputs": list(INPUTS[decoder]), "dropout": dropout}, 2,
    )
    for encoder, decoder, dropouts in (("st", "st", [0.0]), ("st", "t", [0.0, 0.1, 0.2]), ("s", "t", [0.0, 0.1, 0.2]))
    for dropout in dropouts
}  # fmt: skip


@pytest.mark.parametrize("variant", [*TABLE_5, *TABLE_6])
def test_a_variant_has_the_parameters_of_its_parts(variant):
    settings, blocks = (TABLE_5 | TABLE_6)[variant]
    recipe = load_recipe("hyper-adapters/ml50-base", {f"method.{name}": value for name, value in settings.items()})
    with torch.device("meta"):
        shape = empty_backbone(recipe.backbone).shape
        method = build_method(recipe.method, shape=shape, inventory=recipe.inventory())
    counts = {name: sum(p.numel() for p in group) for name, group in method.groups().items()}
    trunk = 3 * EMBEDDING * HIDDEN + HIDDEN + blocks * BLOCK
    assert counts == {
        "embeddings": (len(recipe.languages) + LAYERS) * EMBEDDING,  # what is masked is not smaller
        "hypernetwork": trunk + GENERATED * (HIDDEN + 1),
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return tmp_path_factory.mktemp("world")


def recipe_of(world, dropout, **train):
    method = {"name": "hyper-adapters", "dropout": dropout}
    more = {"steps": 4, "rows_per_batch": 8, "dropout": False, "evaluate_every": 1, "save_every": 1} | train
    return load_recipe(tiny_recipe(world, method, tasks=("pos",), train=more))


def test_dropout_acts_in_every_step_also_after_a_validation_and_without_that_of_the_backbone(world):
    setup = prepare_training(recipe_of(world, 0.2))
    method, plan = setup.model.method, setup.plans[0]
    loop, dropped = tiny_loop(setup), []
    method.get_submodule("hypernetwork.trunk.dropout").register_forward_hook(
        lambda _, given, out: dropped.append(not torch.equal(given[0], out))
    )
    for _ in loop.steps():
        assert dropped
        assert all(dropped)
        dropped.clear()
        setup.validate(setup.model, plan)
        assert dropped, "weights were generated"
        assert not any(dropped)
        dropped.clear()
    assert not setup.model.backbone.model.training


def test_dropout_changes_what_is_learnt_but_no_weights_that_are_scored_or_written(world, tmp_path):
    train_recipe(recipe_of(world, 0.2), tmp_path / "run")
    train_recipe(recipe_of(world, 0.0), tmp_path / "plain")
    runs = [Run.load(tmp_path / "run") for _ in range(2)]
    condition = Condition("pos", "aa")
    found = []
    for number, run in enumerate(runs):
        torch.manual_seed(number)
        (adapter,) = generate_adapters(run.model, [condition])
        found += [adapter.weights, run.model.weights([condition]), run.model.weights([condition])]
    for weights in found[1:]:
        for name, tensor in found[0].blocks[0].tensors.items():
            other = weights.blocks[0].tensors[name]
            assert torch.equal(tensor.flatten(), other.flatten())
    scores = [[r.scores[0].value for r in run.evaluate().results.values()] for run in runs]
    assert scores[0] == scores[1]
    plain = Run.load(tmp_path / "plain").model.weights([condition]).blocks[0].tensors["down"]
    assert not torch.equal(plain, runs[0].model.weights([condition]).blocks[0].tensors["down"])


@pytest.mark.parametrize("method", ["hyper-adapters", "psf"])
def test_weights_that_are_written_out_or_reported_do_not_depend_on_the_mode_or_on_chance(method):
    settings: dict[str, Any] = {"dropout": 0.5} if method == "hyper-adapters" else {}
    model, condition = tiny_model(method, "bert", **settings), Condition("pos", "en")
    (expected,) = generate_adapters(model, [condition])
    deviations, shares = weight_std(model, condition), language_shares(model)
    model.method.train()
    assert not torch.equal(*(next(iter(model.weights([condition]).blocks[0].tensors.values())) for _ in range(2)))
    (found,) = generate_adapters(model, [condition])
    assert found.tensors().keys() == expected.tensors().keys()
    assert all(torch.equal(tensor, expected.tensors()[name]) for name, tensor in found.tensors().items())
    assert (weight_std(model, condition), language_shares(model)) == (deviations, shares)
    assert model.method.training, "as it was"


def test_a_hypernetwork_that_ignores_the_language_is_noticed_with_dropout():
    backbone = tiny_backbone("bert")
    model = Model(backbone, tiny_config("hyper-adapters", dropout=0.5), languages=LANGUAGES, tasks={"pos": 3})
    with torch.no_grad():
        model.method.get_parameter("embeddings.language.weight").fill_(1.0)
    model.train()
    assert language_shares(model)["pos"] < 1e-6
