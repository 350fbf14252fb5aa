"""`tasks.<name>.weight` is the factor of a task's gradient: nothing more, nothing less, and in training alone."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from polyloom.checkpoint import describe_model
from polyloom.config import load_recipe
from polyloom.errors import ConfigError
from polyloom.workflows.train import prepare_training, train_recipe
from tests.reliability.forks import alone, ended, fork, together
from tests.reliability.test_ddp import MIXED, take
from tests.reliability.test_resume import left_at, whole_run
from tests.reliability.tiny import CALM, changed, distance, tiny_loop, weights
from tests.tiny_run import tiny_recipe

ALL = ("mlm", "pos", "ner")
LEARNT = {"hyperx": ALL, "full": ALL, "madx": ("pos", "ner")}  # in the last stage
EVERYTHING_AT_ONCE = {"mixture": {"datasets_per_batch": 8}, "train": {"rows_per_batch": 16, "steps": 6}}
UNCLIPPED = {"optim": CALM | {"weight_decay": 0.1, "max_grad_norm": 0.0}}


def recipe_with(world, factors, method="hyperx", **sections):
    tasks = ALL[1:] if method == "psf" else ALL
    path = tiny_recipe(world, method, tasks=tasks, **(UNCLIPPED | EVERYTHING_AT_ONCE | sections))
    return load_recipe(path, {f"tasks.{task}.weight": factor for task, factor in factors.items()})


def setup_with(world, factors, method="hyperx", **sections):
    return prepare_training(recipe_with(world, factors, method, **sections))


def gradients(setup, *, spoil=None):
    """All gradients of one step of the last stage, as the optimizer gets them, and what it passes to the objective.

    `spoil` is a task whose labels are exchanged.
    """
    loop, found = tiny_loop(setup, stage=-1), SimpleNamespace(gradients={}, weights={}, losses={}, loss=0.0)
    for name, dataset in list(loop.datasets.items()):
        if dataset.condition.task == spoil:
            loop.datasets[name] = replace(dataset, numbers=dataset.numbers[::-1].copy())
    names, objective = loop.optimizer.names, loop.objective

    def look(_factor):
        found.gradients = {names[p]: p.grad.to_dense().clone() for p in loop.optimizer.parameters if p.grad is not None}

    def remember(batch, factors, conditions):
        found.weights = dict(factors)
        return objective(batch, factors, conditions)

    loop.optimizer.step, loop.objective = look, remember  # type: ignore[assignment, method-assign]
    step = loop.take(0)
    found.losses, found.loss, found.datasets = step.losses, step.loss, step.datasets
    return found


@pytest.mark.parametrize("method", LEARNT)
def test_the_gradient_of_a_step_is_the_weighted_sum_of_those_of_its_tasks(world, method):
    tasks, none = LEARNT[method], dict.fromkeys(LEARNT[method], 0.0)
    only = {task: gradients(setup_with(world, none | {task: 1}, method)).gradients for task in tasks}
    for task in tasks:
        twice = gradients(setup_with(world, none | {task: 2}, method)).gradients
        assert not changed({name: 2 * gradient for name, gradient in only[task].items()}, twice)
    factors = dict(zip(tasks, (0.5, 3.0, 1.0), strict=False))
    found = gradients(setup_with(world, factors, method))
    expected = {name: sum(factors[t] * only[t].get(name, 0.0) for t in tasks) for name in found.gradients}
    assert distance(found.gradients, expected) <= 1e-6
    assert all(max(float(g.abs().max()) for g in gradient.values()) > 1e-3 for gradient in only.values())
    shares = {task: sum(n for name, n in found.datasets.items() if name.startswith(task)) / 16 for task in tasks}
    assert found.loss == pytest.approx(sum(factors[t] * shares[t] * found.losses[t] for t in tasks))


def test_one_is_the_mean_over_examples_without_any_weight(world):
    """The very numbers that the objective got before there were weights."""
    found, plain = (gradients(setup_with(world, factors)) for factors in (dict.fromkeys(ALL, 1.0), {}))
    assert not changed(found.gradients, plain.gradients)
    loop = tiny_loop(setup_with(world, {}))
    (batch,) = loop.batches(0).micro_batches
    assert found.weights == {t: 1 * len(part.positions) / 16 / part.count for t, part in batch.by_task.items()}


@pytest.mark.parametrize("method", [*LEARNT, "psf"])
def test_zero_leaves_nothing_of_a_task(world, method):
    setup = setup_with(world, {"ner": 0.0}, method)
    found, spoilt = gradients(setup), gradients(setup_with(world, {"ner": 0.0}, method), spoil="ner")
    assert found.losses["ner"] != spoilt.losses["ner"], "it is still computed"
    assert not changed(found.gradients, spoilt.gradients)
    assert not [name for name in found.gradients if name.startswith("heads.ner")], "weight decay would shrink it"
    rows = [table for table in setup.model.method.growing("task") if table.trainable]
    names = {id(p): name for name, p in setup.model.named_parameters()}
    row = list(setup.model.method.tasks).index("ner")
    of_ner = [
        found.gradients[names[id(p)]][row] for t in rows for p in t.parameters() if names[id(p)] in found.gradients
    ]
    assert bool(of_ner) == (method != "full")
    assert not any(gradient.any() for gradient in of_ner), "neither from its loss nor from the method's penalty"
    assert any(gradient.any() for gradient in found.gradients.values())


def test_a_step_of_such_a_task_alone_moves_nothing_not_even_by_momentum(world):
    setup = setup_with(
        world, {"pos": 0.0}, mixture={"strategy": "round-robin", "temperature": 1.0, "datasets_per_batch": 1}
    )
    before, still, moved = weights(setup), 0, 0
    for step in tiny_loop(setup, steps=14).steps():
        (task,), now = step.losses, weights(setup)
        assert not step.skipped
        assert bool(changed(before, now)) == (task != "pos")
        still, moved, before = still + (task == "pos"), moved + (task != "pos"), now
    assert still >= 2
    assert moved >= 4


def test_two_processes_are_one(world, tmp_path):
    setup = setup_with(world, {"mlm": 0.0, "pos": 2.0}, optim=CALM, **MIXED)
    (one,) = together(lambda process_group: take(setup, process_group), tmp_path)
    first, second = together(lambda process_group: take(setup, process_group), tmp_path, size=2)
    assert not changed(first["weights"], second["weights"])
    assert distance(one["weights"], first["weights"]) <= 1e-5
    plain = setup_with(world, {}, optim=CALM, **MIXED)
    (other,) = together(lambda process_group: take(plain, process_group), tmp_path)
    assert changed(one["weights"], other["weights"])


def test_a_resumed_run_has_the_same_weights(world, tmp_path):
    setup = setup_with(world, {"mlm": 0.25}, train={"steps": 20, "rows_per_batch": 8, "save_every": 7})
    expected = alone(lambda: whole_run(setup, tmp_path / "whole"), tmp_path / "one")
    assert ended(fork(lambda: left_at(setup, tmp_path / "broken", 16))) == 0
    found = alone(lambda: whole_run(setup, tmp_path / "broken"), tmp_path / "other")
    assert not changed(expected["all"], found["all"])
    assert not changed(expected["optimizer"], found["optimizer"])


def test_a_run_is_not_resumed_with_another_weight(world, tmp_path):
    train_recipe(recipe_with(world, {}), tmp_path / "run")
    train_recipe(recipe_with(world, {"pos": 1.0}), tmp_path / "run")  # the default
    with pytest.raises(ConfigError, match=r"tasks\.pos\.weight"):
        train_recipe(recipe_with(world, {"pos": 2.0}), tmp_path / "run")


def test_validation_and_the_trained_model_know_nothing_of_it(world):
    scores = []
    for factors in ({}, {"pos": 0.0, "mlm": 3.0}):
        setup = setup_with(world, factors)
        assert "task_settings" not in describe_model(setup.model)
        torch.manual_seed(0)
        found = setup.validate(setup.model.eval(), setup.plans[0])
        scores.append({str(condition): score.value for condition, score in found.items()})
    assert scores[0] == scores[1]
    assert scores[0]


@pytest.mark.parametrize("factor", [-1, float("inf"), float("nan"), "2"])
def test_other_weights_are_refused(world, factor):
    with pytest.raises(ConfigError, match=r"tasks\.pos\.weight"):
        recipe_with(world, {"pos": factor})


def test_a_stage_without_any_loss_is_refused(world):
    with pytest.raises(ConfigError, match=r"tasks\.mlm\.weight: 0, so stage 'head' learns nothing"):
        setup_with(world, {"mlm": 0.0}, "madx")
