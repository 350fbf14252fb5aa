"""Saved by time and stopped by signals: what is lost is bounded, and what is resumed ends with the same bits."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from polyloom.checkpoint import read_tensors
from polyloom.config import load_recipe
from polyloom.rundir import RunDir
from polyloom.training.average import average_run
from polyloom.training.events import StepTaken
from polyloom.training.stopping import StopSignals
from polyloom.workflows.train import train_recipe
from tests.reliability.forks import alone, ended, fork, read_log, together
from tests.reliability.test_resume import left_at, whole_run
from tests.reliability.tiny import changed, saved, tiny_fit, tiny_setup
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


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
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


def test_killed_at_any_moment_at_most_one_interval_is_lost(world, tmp_path):
    interval = 0.5
    settings = {"save_every": None, "save_minutes": interval / 60, "steps": 100_000, "rows_per_batch": 4}
    setup = tiny_setup(world, train=settings)
    run = tmp_path / "run"
    child = fork(lambda: tiny_fit(setup, run).run())
    end = time.monotonic() + 60
    while len(RunDir(run).steps()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.7 * interval)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    lines = (run / "log.jsonl").read_bytes()
    (run / "log.jsonl").write_bytes(lines[: lines.rindex(b"\n") + 1])
    steps = [event for event in read_log(run) if event["event"] == "step"]
    done = next(event["time"] for event in read_log(run) if event["event"] == "saved" and event["total"] == saved(run))
    longest = max(b["time"] - a["time"] for a, b in pairwise(steps))
    assert steps[-1]["total"] > saved(run)
    assert steps[-1]["time"] - done <= interval + longest


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
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        stop._first -= 6
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def started(command, run, **more):
    """Start a command that trains, and wait until it has taken some steps."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | more, start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 200
    while not ((run / "log.jsonl").exists() and (run / "log.jsonl").read_text().count('"event": "step"') > 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


STEPS = 150


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
    run = tmp_path / "run"
    process = started(["-m", "polyloom", "train", str(recipe), "-o", str(run)], run)
    process.send_signal(number)
    out, said = process.communicate(timeout=100)
    assert (process.returncode, out) == (code, "")
    step = saved(run)
    assert 3 < step < STEPS, "the recipe asks for no checkpoint before its end"
    assert f"{signal.Signals(number).name}: saving after this step." in said
    assert f"Interrupted at step {step}; it is saved in {RunDir(run).checkpoint(step)}. To resume from there:" in said
    assert said.splitlines()[-1].strip() == f"polyloom train {recipe} -o {run}"
    assert read_log(run)[-1]["total"] == step
    found = alone(lambda: read_tensors(train_recipe(load_recipe(recipe), run)), tmp_path / "end")
    assert not changed(found, expected)


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_the_same_holds_under_torchrun(tmp_path, recipe, number, code):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "polyloom", "train"]
    run = tmp_path / "run"
    process = started([*torchrun, str(recipe), "-o", str(run)], run)
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1, "torchrun's own"
    step = saved(run)
    assert 3 < step < STEPS
    assert f"it is saved in {RunDir(run).checkpoint(step)}. To resume from there with the same launcher:" in said
    assert read_log(run)[-1]["total"] == step
