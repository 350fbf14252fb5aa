"""After divergence: diverged weights are not what a run resumes from, and the advice of the error leads to its end."""

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
from polyloom.workflows.train import _check_same, train_recipe
from tests.reliability.forks import read_log
from tests.reliability.test_not_a_number import Poison, bad_batches
from tests.reliability.tiny import tiny_fit, tiny_setup
from tests.tiny_run import tiny_recipe


def poisoned(setup, run, after, *, until=100):
    """Train with weights that give no finite loss after a step; the error."""
    poison = Poison(setup, "loss nan")

    def on_event(event):
        if isinstance(event, StepEvent):
            poison.active = after <= event.step < until

    with pytest.raises(TrainingError) as caught:
        tiny_fit(setup, run, on_event=on_event).run()
    return str(caught.value)


@pytest.mark.parametrize("keep_last", [1, 2])
def test_skipped_steps_are_not_saved_and_the_newest_checkpoint_is_healthy(world, tmp_path, keep_last):
    setup = tiny_setup(world, train={"steps": 20, "save_every": 1, "keep_last": keep_last})
    said = poisoned(setup, tmp_path / "run", 7)
    folder = RunDir(tmp_path / "run")
    assert folder.steps()[-1] == 6, "the weights after step 7 gave no finite loss"
    assert len(folder.steps()) <= keep_last
    assert (folder.checkpoints / "diverged-00000007").is_dir(), "and are kept for whoever wants to look"
    assert "were renamed: diverged-00000007. " in said
    assert "resumes from step-00000006" in said
    last = read_log(tmp_path / "run")[-1]
    assert (last["event"], last["checkpoint"], last["set_aside"]) == (
        "diverged",
        "step-00000006",
        ["diverged-00000007"],
    )


def test_every_attempt_that_diverges_again_begins_earlier_in_the_end_at_the_beginning(world, tmp_path):
    newest = []
    for _ in range(4):
        setup = tiny_setup(world, train={"steps": 20, "save_every": 2, "keep_last": 2})
        said = poisoned(setup, tmp_path / "run", 7)
        newest.append(max(RunDir(tmp_path / "run").steps(), default=0))
    assert newest == [6, 4, 0, 0]
    assert "starts from the beginning" in said


def test_a_checkpoint_that_is_due_at_a_skipped_step_is_written_after_the_next_one(world, tmp_path, monkeypatch):
    setup = tiny_setup(world, train={"steps": 8, "save_every": 3, "keep_last": 9})
    bad_batches(monkeypatch, Poison(setup, "loss nan"), (5, 7).__contains__)
    tiny_fit(setup, tmp_path / "run").run()
    assert [event["step"] for event in read_log(tmp_path / "run") if event["event"] == "skipped"] == [6, 8]
    assert RunDir(tmp_path / "run").steps() == [3, 7, 8], "the last one: other batches show that its weights are good"


def test_a_stage_that_ends_with_skipped_steps_is_not_finished_if_its_weights_are_the_reason(world, tmp_path):
    setup = tiny_setup(world, train={"steps": 8, "save_every": 2})
    said = poisoned(setup, tmp_path / "run", 6)
    assert "step 8: loss or gradient was NaN or infinite 2 times in a row" in said
    assert MAX_SKIPPED > 2
    assert RunDir(tmp_path / "run").steps() == [2, 4]


def test_parameters_that_are_no_numbers_are_not_saved(world, tmp_path):
    setup = tiny_setup(world, train={"steps": 8})

    def on_event(event):
        if isinstance(event, StepTaken) and event.step == 6:
            with torch.no_grad():
                next(setup.model.method.parameters()).view(-1)[0] = float("inf")

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
    folder.note(Diverged(total=3, checkpoint=None, set_aside=[]).to_dict())
    changed = _check_same(load_recipe(recipe, ["stages.tasks.optim.lr=0.1", "train.save_minutes=1"]), folder)
    assert changed["stages.tasks.optim.lr"] == [1.0, 0.1]
    assert changed["stages.tasks.train.save_minutes"] == changed["train.save_minutes"] == [15.0, 1.0]
