"""A loss or gradient that is not a number: the step is skipped, nothing is spoilt, and five in a row end the run."""

import math

import pytest
import torch

from polyloom.errors import TrainingError
from polyloom.training.events import StepTaken
from polyloom.training.loop import MAX_SKIPPED, TrainLoop
from tests.reliability.forks import read_log, together
from tests.reliability.tiny import changed, state, tiny_fit, tiny_loop, tiny_setup, weights

POISONS = ["loss nan", "loss inf", "gradient nan", "gradient inf"]


class Poison:
    """Spoils loss or gradients of a model while `active`."""

    def __init__(self, setup, kind):
        where, what = kind.split()
        self.active, self.value = False, float(what)
        if where == "loss":
            setup.model.backbone.layers[-1].register_forward_hook(self.loss)
        else:
            setup.model.method.get_parameter("hypernetwork.trunk.0.weight").register_hook(self.gradient)

    def loss(self, _module, _inputs, output):
        return output * self.value if self.active else output

    def gradient(self, gradient):
        return gradient.index_fill(0, torch.tensor([1]), self.value) if self.active else gradient


def skipping(setup, kind, *, process_group=None, everywhere=True):
    """Take six steps of which the fourth is poisoned; what it left, and what came after."""
    poison = Poison(setup, kind)
    loop = tiny_loop(setup, process_group=process_group)
    steps = loop.steps()
    healthy = [next(steps) for _ in range(3)]
    before = weights(setup), state(loop)
    poison.active = everywhere or process_group.rank == 1
    spoilt = next(steps)
    poison.active = False
    after = weights(setup), state(loop)
    healthy += list(steps)
    assert spoilt.skipped
    assert (spoilt.step, len(healthy)) == (4, 5)
    assert not any(step.skipped for step in healthy)
    assert not changed(before[0], after[0]), "weights are those before"
    assert not changed(before[1], after[1]), "so is the optimizer's state"
    assert before[1]
    end = weights(setup)
    assert changed(after[0], end), "and the run goes on"
    assert all(tensor.isfinite().all() for tensor in end.values())
    return end


@pytest.mark.parametrize("kind", POISONS)
def test_a_step_whose_loss_or_gradient_is_no_number_leaves_everything_as_it_was(world, kind):
    skipping(tiny_setup(world), kind)


@pytest.mark.parametrize("kind", ["loss nan", "gradient inf"])
def test_what_is_no_number_in_one_process_is_skipped_by_all(world, tmp_path, kind):
    setup = tiny_setup(world)
    one, other = together(
        lambda process_group: skipping(setup, kind, process_group=process_group, everywhere=False), tmp_path, size=2
    )
    assert not changed(one, other)


@pytest.mark.parametrize("kind", POISONS)
def test_five_in_a_row_end_the_run_with_the_weights_before(world, tmp_path, kind):
    setup = tiny_setup(world, train={"steps": 20})
    poison, last = Poison(setup, kind), {}

    def on_event(event):
        if isinstance(event, StepTaken) and event.step == 3:
            poison.active = True
            last.update(weights(setup))

    fit = tiny_fit(setup, tmp_path / "run", on_event=on_event)
    with pytest.raises(
        TrainingError, match=r"step 8: loss or gradient was NaN or infinite 5 times in a row .*optim.lr"
    ):
        fit.run()
    assert not changed(last, weights(setup))
    events = read_log(tmp_path / "run")
    skipped = [event for event in events if event["event"] == "skipped"]
    assert [event["step"] for event in skipped] == [4, 5, 6, 7][: MAX_SKIPPED - 1]
    for event in skipped:
        assert event["gradient_norm"] is None
        assert (event["loss"] is None) == kind.startswith("loss")
        assert event["datasets"], "so that one can look at them"
    assert all(math.isfinite(event["loss"]) for event in events if event["event"] == "step")


def bad_batches(monkeypatch, poison, is_bad):
    """Let the batches of some steps, counted from 0, give no finite loss, whatever the weights are."""
    take = TrainLoop.take

    def poisoned(loop, index, *args, **more):
        poison.active = is_bad(index)
        return take(loop, index, *args, **more)

    monkeypatch.setattr(TrainLoop, "take", poisoned)


def test_a_few_that_are_not_in_a_row_do_not_end_the_run(world, tmp_path, monkeypatch):
    setup = tiny_setup(world, train={"steps": 20})
    bad_batches(monkeypatch, Poison(setup, "loss nan"), lambda index: index % 3 != 0)
    tiny_fit(setup, tmp_path / "run").run()
    assert sum(event["event"] == "skipped" for event in read_log(tmp_path / "run")) == 13
