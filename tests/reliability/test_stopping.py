"""Saved by time and stopped by signals: what is lost is bounded, and what is resumed ends with the same bits."""

import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyloom.checkpoint import read_tensors
from polyloom.config import load_recipe
from polyloom.rundir import RunDir
from polyloom.training import trainer
from polyloom.training.average import average_run
from polyloom.training.events import StepTaken
from polyloom.training.stopping import StopSignals
from polyloom.workflows.train import train_recipe
from tests.reliability.forks import alone, ended, fork, read_log, together
from tests.reliability.test_resume import left_at, whole_run
from tests.reliability.tiny import changed, saved, tiny_fit, tiny_setup
from tests.shared import nightly
from tests.tiny_run import tiny_recipe

ROOT = Path(__file__).parents[2]
ALWAYS = {"save_every": None, "save_minutes": 1e-9, "dropout": True}  # after every step
NEVER = {"save_every": None, "save_minutes": None, "dropout": True}
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


def same(one, other):
    return not any(changed(one[part], other[part]) for part in ("weights", "optimizer", "all"))


def stopped_at(setup, run, step, *signals, process_group=None):
    """Train, and receive signals after a step; the exit code."""

    def on_event(event):
        if isinstance(event, StepTaken) and event.total == step:
            for number in signals:
                os.kill(os.getpid(), number)

    try:
        tiny_fit(setup, run, process_group=process_group, on_event=on_event, stop=StopSignals()).run()
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:
        return end.code
    return 0


def test_a_recipe_that_says_nothing_is_saved_every_quarter_of_an_hour(world):
    assert load_recipe(tiny_recipe(world)).train.save_minutes == 15


def test_checkpoints_by_time_do_not_change_the_run_and_bound_what_is_lost(world, tmp_path):
    setup = tiny_setup(world, "madx", train=NEVER | {"steps": 12})
    expected = alone(lambda: whole_run(setup, tmp_path / "whole"), tmp_path / "one")
    assert RunDir(tmp_path / "whole").steps() == [24, 36]  # of three stages, the last two
    setup = tiny_setup(world, "madx", train=ALWAYS | {"steps": 12})
    for step in (5, 9, 17):  # the last one in the second stage
        assert ended(fork(partial(left_at, setup, tmp_path / "broken", step))) == 0
        assert saved(tmp_path / "broken") == step - 1
        assert len(RunDir(tmp_path / "broken").steps()) <= 4
    assert same(expected, alone(lambda: whole_run(setup, tmp_path / "broken"), tmp_path / "other"))


@pytest.mark.parametrize("strategy", ["ddp", *nightly("fsdp")])
def test_several_processes_save_by_time_and_stop_by_the_signal_of_one_after_the_same_step(world, tmp_path, strategy):
    setup = tiny_setup(world, train=NEVER | {"steps": 12, "strategy": strategy})

    def whole(process_group):
        return whole_run(setup, tmp_path / "whole", process_group=process_group)

    expected = together(whole, tmp_path / "one", size=2)
    setup = tiny_setup(world, train=ALWAYS | {"steps": 12, "strategy": strategy})

    def broken(process_group):
        signals = [signal.SIGTERM] if process_group.is_main else []
        return stopped_at(setup, tmp_path / "broken", 5, *signals, process_group=process_group)

    assert together(broken, tmp_path / "two", size=2) == [143, 143]
    assert saved(tmp_path / "broken") == 6

    def resumed(process_group):
        return whole_run(setup, tmp_path / "broken", process_group=process_group)

    for one, other in zip(expected, together(resumed, tmp_path / "three", size=2), strict=True):
        assert same(one, other)


def test_killed_after_any_step_at_most_one_interval_is_lost(world, tmp_path, monkeypatch):
    """By a clock on which a step takes a second, and nothing else takes any time."""
    seconds, interval = 0, 3
    setup = tiny_setup(world, train=NEVER | {"save_minutes": interval / 60, "steps": 12})
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: seconds, perf_counter=time.perf_counter))

    def killed_after(run, last):
        def on_event(event):
            nonlocal seconds
            if isinstance(event, StepTaken):
                seconds += 1
                if event.total == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        tiny_fit(setup, run, on_event=on_event).run()

    lost = []
    for last in range(1, 11):
        run = tmp_path / str(last)
        assert ended(fork(partial(killed_after, run, last))) == -signal.SIGKILL
        assert read_log(run)[-1]["total"] == last
        lost.append(last - saved(run))
    # A checkpoint is due after the first step that begins when the interval is over: an interval and one step.
    assert lost == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert max(lost) <= interval + 1


def test_checkpoints_by_time_do_not_take_the_place_of_those_that_are_averaged(world, tmp_path):
    steps = {"steps": 12, "save_every": 3, "keep_last": 3, "dropout": True}
    for name, minutes in (("plain", None), ("timed", 1e-9)):
        setup = tiny_setup(world, train=steps | {"save_minutes": minutes})
        alone(partial(whole_run, setup, tmp_path / name), tmp_path / "one")
        RunDir(tmp_path / name).recipe.touch()
        average_run(tmp_path / name, tmp_path / f"{name}-mean", last=3)
    assert RunDir(tmp_path / "plain").steps() == [6, 9, 12]
    assert RunDir(tmp_path / "timed").steps() == [6, 9, 11, 12]
    one, other = (read_tensors(RunDir(tmp_path / f"{name}-mean").checkpoint(12)) for name in ("plain", "timed"))
    assert not changed(one, other)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_stops_after_the_current_step_and_a_second_one_at_once(world, tmp_path, number, code):
    setup = tiny_setup(world, train=NEVER | {"steps": 6})
    assert alone(lambda: stopped_at(setup, tmp_path / "once", 3, number), tmp_path / "end") == code
    assert RunDir(tmp_path / "once").steps() == [4]
    assert alone(lambda: stopped_at(setup, tmp_path / "twice", 3, number, number), tmp_path / "end") == code
    assert RunDir(tmp_path / "twice").steps() == []


def test_signals_that_a_launcher_repeats_count_as_one():
    with StopSignals(launched=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop._received_at = math.inf  # just now, however slow this machine is
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        stop._received_at = -math.inf  # long ago
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# The command polyloom, which gets a signal after its fifth step: from itself, or from its launcher.
SIGNALLED = """
import os, signal, time
from polyloom.cli import main
from polyloom.rundir import RunDir
from polyloom.training.stopping import StopSignals

note, receive, received = RunDir.note, StopSignals._receive, []

def note_and_signal(folder, event):  # only the first process notes
    note(folder, event)
    if event["event"] == "step" and event["total"] == 5:
        os.kill(os.getppid() if "RANK" in os.environ else os.getpid(), signal.{name})
        while not received:  # a launcher passes it on
            time.sleep(0.01)

def note_and_receive(stop, number, frame):
    received.append(number)
    receive(stop, number, frame)

RunDir.note, StopSignals._receive = note_and_signal, note_and_receive
main()
"""
STEPS, SAVED = 12, 6  # the signal comes when the sixth step begins


def run_signalled(tmp_path, name, *arguments, launcher=()):
    """Run the command to its end."""
    script = tmp_path / "signalled.py"
    script.write_text(SIGNALLED.format(name=name))
    return subprocess.run(
        [sys.executable, *launcher, script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recipe(world):
    settings = {"steps": STEPS, "rows_per_batch": 4, "dropout": True}
    path = tiny_recipe(world, "hyperx", tasks=("mlm", "pos"), train=settings, optim={"warmup_steps": 2})
    return path.rename(world / "stopped.yaml")


@pytest.fixture(scope="module")
def expected(recipe, tmp_path_factory):
    """The weights of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return alone(lambda: read_tensors(train_recipe(load_recipe(recipe), folder / "run")), folder / "end")


@pytest.mark.parametrize(("number", "code"), [SIGNALS[0], pytest.param(*SIGNALS[1], marks=pytest.mark.nightly)])
def test_the_command_says_where_it_saved_and_resumes_to_the_same_end(tmp_path, recipe, expected, number, code):
    run, name = tmp_path / "run", signal.Signals(number).name
    done = run_signalled(tmp_path, name, "train", recipe, "-o", run)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert RunDir(run).steps() == [SAVED], "the recipe asks for no checkpoint before its end"
    assert f"{name}: saving after this step." in done.stderr
    where = RunDir(run).checkpoint(SAVED)
    assert f"Interrupted at step {SAVED}; it is saved in {where}. To resume from there:" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == f"polyloom train {recipe} -o {run}"
    assert read_log(run)[-1]["total"] == SAVED
    found = alone(lambda: read_tensors(train_recipe(load_recipe(recipe), run)), tmp_path / "end")
    assert not changed(found, expected)


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_the_same_holds_under_torchrun(tmp_path, recipe, number, code):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = tmp_path / "run"
    done = run_signalled(tmp_path, signal.Signals(number).name, "train", recipe, "-o", run, launcher=launcher)
    assert done.returncode == 1, "torchrun's own"
    assert RunDir(run).steps() == [SAVED]
    where = RunDir(run).checkpoint(SAVED)
    assert f"it is saved in {where}. To resume from there with the same launcher:" in done.stderr
    assert read_log(run)[-1]["total"] == SAVED
