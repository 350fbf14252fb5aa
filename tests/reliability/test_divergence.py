"""Divergence: every checkpoint on disk has healthy weights, and the advice of the error leads to the end of the run."""

import re

import pytest
import torch

from polyloom.checkpoint import read_tensors
from polyloom.config import load_recipe, resolved
from polyloom.errors import ConfigError, TrainingError
from polyloom.io.yaml import dump_yaml
from polyloom.rundir import RunDir
from polyloom.training.events import Diverged, StepEvent, StepTaken
from polyloom.training.loop import MAX_SKIPPED
from polyloom.workflows.train import changed_settings, train_recipe
from tests.reliability.forks import read_log
from tests.reliability.test_not_a_number import POISONS, Poison, bad_batches
from tests.reliability.tiny import changed, tiny_fit, tiny_setup, weights
from tests.tiny_run import tiny_recipe


def poisoned(setup, run, after, *, kind="loss nan"):
    """Train with weights that give no finite loss or gradient after a step; the error, and the weights of that step."""
    poison, last = Poison(setup, kind), {}

    def on_event(event):
        if isinstance(event, StepEvent):
            poison.active = event.step >= after
            if event.step == after:
                last.update(weights(setup))

    with pytest.raises(TrainingError) as error:
        tiny_fit(setup, run, on_event=on_event).run()
    return str(error.value), last


@pytest.mark.parametrize("keep_last", [1, 2])
@pytest.mark.parametrize("kind", POISONS)
def test_weights_that_give_no_finite_loss_or_gradient_are_not_saved(world, tmp_path, keep_last, kind):
    setup = tiny_setup(world, train={"steps": 20, "save_every": 1, "keep_last": keep_last})
    message, _ = poisoned(setup, tmp_path / "run", 7, kind=kind)
    folder = RunDir(tmp_path / "run")
    assert folder.steps() == [5, 6][-keep_last:], "the weights after step 7 gave no finite loss"
    assert message.startswith("step 7: with the weights of this step, loss or gradient are NaN or infinite")
    assert "resumes from step-00000006, which is healthy" in message
    last = read_log(tmp_path / "run")[-1]
    assert (last["event"], last["checkpoint"]) == ("diverged", "step-00000006")


def test_nothing_is_saved_while_steps_are_skipped_and_five_in_a_row_end_the_run(world, tmp_path):
    """Not even by time, which a signal does as well."""
    setup = tiny_setup(world, train={"steps": 20, "save_every": 3, "keep_last": 9})
    message, last = poisoned(setup, tmp_path / "run", 7)
    assert message.startswith(f"step 12: loss or gradient was NaN or infinite {MAX_SKIPPED} times in a row")
    assert "resumes from step-00000006, which is healthy" in message
    assert RunDir(tmp_path / "run").steps() == [3, 6], "step 9 was skipped"
    assert not changed(last, weights(setup)), "skipped steps leave the weights of step 7 as they are"


def test_a_run_that_diverges_again_resumes_from_the_same_checkpoint_again(world, tmp_path):
    for _ in range(2):
        setup = tiny_setup(world, train={"steps": 20, "save_every": 2})
        message, _ = poisoned(setup, tmp_path / "run", 7)
        assert RunDir(tmp_path / "run").steps() == [4, 6]
        assert "resumes from step-00000006" in message
    assert [event["step"] for event in read_log(tmp_path / "run") if event["event"] == "resumed"] == [6]


def test_a_run_that_diverges_before_its_first_checkpoint_starts_from_the_beginning(world, tmp_path):
    message, _ = poisoned(tiny_setup(world, train={"steps": 20, "save_every": 10}), tmp_path / "run", 1)
    assert "starts from the beginning" in message
    assert not RunDir(tmp_path / "run").steps()


def test_a_checkpoint_that_is_due_at_a_skipped_step_is_written_after_the_next_one(world, tmp_path, monkeypatch):
    setup = tiny_setup(world, train={"steps": 8, "save_every": 3, "keep_last": 9})
    bad_batches(monkeypatch, Poison(setup, "loss nan"), (5, 7).__contains__)
    tiny_fit(setup, tmp_path / "run").run()
    assert [event["step"] for event in read_log(tmp_path / "run") if event["event"] == "skipped"] == [6, 8]
    assert RunDir(tmp_path / "run").steps() == [3, 7, 8], "the last one: other batches show that its weights are good"


def test_a_stage_that_ends_with_skipped_steps_is_not_finished_if_its_weights_are_the_reason(world, tmp_path):
    setup = tiny_setup(world, train={"steps": 8, "save_every": 5})
    message, _ = poisoned(setup, tmp_path / "run", 6)
    assert "step 8: with the weights of this step, loss or gradient are NaN or infinite" in message
    assert MAX_SKIPPED > 2
    assert RunDir(tmp_path / "run").steps() == [5]


def test_parameters_that_are_no_numbers_are_not_saved(world, tmp_path):
    """Here of a language without examples, on which no loss depends."""
    setup = tiny_setup(world, {"name": "madx", "train_head": False}, languages=["aa", "bb", "cc", "zz"])

    def on_event(event):
        if isinstance(event, StepTaken) and event.step == 6:
            with torch.no_grad():
                setup.model.method.get_parameter("language_adapters.up")[3, 0, 0, 0] = float("inf")

    with pytest.raises(TrainingError, match=r"step 6: 1 of \d+ trained tensors have values that are NaN or infinite"):
        tiny_fit(setup, tmp_path / "run", on_event=on_event).run()
    folder = RunDir(tmp_path / "run")
    assert folder.steps() == [2, 4]
    assert all(tensor.isfinite().all() for tensor in read_tensors(folder.checkpoint(4)).values())


@pytest.mark.parametrize(("method", "lr"), [("hyperx", 10.0), ("madx", 1e3)])
def test_the_advice_of_the_error_can_be_followed_in_the_same_folder(world, tmp_path, method, lr):
    optim, run = {"lr": lr, "warmup_steps": 0}, tmp_path / "run"
    recipe = tiny_recipe(world, method, train={"steps": 30, "save_every": 1, "rows_per_batch": 8}, optim=optim)
    with pytest.raises(TrainingError) as caught:
        train_recipe(load_recipe(recipe), run)
    for _ in range(4):
        assert "Lower optim.lr" in str(caught.value)
        assert re.search(r"The same command with other settings of optim (resumes|starts) from", str(caught.value))
        try:
            best = train_recipe(load_recipe(recipe, ["optim.lr=0.003"]), run)
            break
        except TrainingError as error:
            caught.value.args = error.args
    assert all(tensor.isfinite().all() for tensor in read_tensors(best).values())
    events = read_log(run)
    assert events[-1]["event"] == "done"
    changes = [event["changed"] for event in events if event["event"] == "begin"]
    assert changes[:2] == [{}, {"optim.lr": [lr, 0.003]}]
    with pytest.raises(ConfigError, match=r"optim.lr: was 0.003 when this run began, now 0.002"):
        train_recipe(load_recipe(recipe, ["optim.lr=0.002"]), run)


def test_other_settings_may_not_change_after_divergence_either(world, tmp_path):
    recipe = tiny_recipe(world, train={"steps": 30}, optim={"lr": 1e6, "warmup_steps": 0})
    with pytest.raises(TrainingError):
        train_recipe(load_recipe(recipe), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"mixture\.temperature: was") as caught:
        train_recipe(load_recipe(recipe, ["optim.lr=0.003", "mixture.temperature=1.0"]), tmp_path / "run")
    assert "optim.lr" not in str(caught.value)


def test_settings_of_a_single_stage_may_change_as_those_of_all_may(world, tmp_path):
    recipe = tiny_recipe(world, "madx", stages={"tasks": {"optim": {"lr": 1.0}}})
    folder = RunDir(tmp_path)
    folder.write(folder.recipe, dump_yaml(resolved(load_recipe(recipe))))
    folder.note(Diverged(total=3, checkpoint=None).to_dict())
    changed = changed_settings(load_recipe(recipe, ["stages.tasks.optim.lr=0.1", "train.save_minutes=1"]), folder)
    assert changed["stages.tasks.optim.lr"] == [1.0, 0.1]
    assert changed["stages.tasks.train.save_minutes"] == changed["train.save_minutes"] == [15.0, 1.0]
