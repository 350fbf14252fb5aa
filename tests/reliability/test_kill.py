"""Killed at any instant, on a full disk, in a folder that cannot be written: at most one interval is lost."""

import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from polyloom import tensor_files
from polyloom.checkpoint import read_tensors
from polyloom.errors import TrainingError
from polyloom.metrics.score import ACCURACY, Score
from polyloom.training.events import CheckpointSaved
from tests.reliability.forks import alone, ended, fork, read_log
from tests.reliability.tiny import changed, saved, tiny_fit, tiny_setup, weights

KILLS = (15, pytest.param(100, marks=pytest.mark.nightly))


def by_lot(model, plan):
    """A score that depends on the weights alone, and says nothing of them: any checkpoint may be the best."""
    bits = b"".join(p.detach().numpy().tobytes() for p in model.method.parameters())
    lot = hashlib.sha256(bits).digest()[0]
    return {plan.datasets[0].condition: Score(ACCURACY, np.array([[lot, 256]]), "by lot")}


def trained(setup, run, **more):
    """Train to the end; the weights of the best checkpoint and those in memory."""
    best = tiny_fit(setup, run, validate=by_lot, **more).run()
    return {"best": read_tensors(best), "memory": weights(setup)}


class EnoughError(Exception):
    pass


def until_stage_two(setup, run):
    """Train until the second stage has saved its first steps."""

    def on_event(event):
        if isinstance(event, CheckpointSaved) and event.total > setup.recipe.train.steps + 3:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        tiny_fit(setup, run, validate=by_lot, on_event=on_event).run()
    return {}


def leftovers(run):
    return list((run / "checkpoints").glob(".step-*.partial-*"))


def logged(run):
    """The last step that the log knows of; its last line may be half a line."""
    lines = (run / "log.jsonl").read_text().splitlines() if (run / "log.jsonl").exists() else []
    steps = [json.loads(line)["total"] for line in lines if line.startswith('{"event": "step"') and line.endswith("}")]
    return steps[-1] if steps else 0


def life(setup, run, seconds, *, in_save):
    """Train in a child for so long, and then perhaps until it saves; whether it was killed."""
    child = fork(lambda: tiny_fit(setup, run, validate=by_lot).run())
    time.sleep(seconds)
    end = time.monotonic() + 0.3
    while in_save and not leftovers(run) and time.monotonic() < end:
        time.sleep(0.0005)
    time.sleep(seconds / 40)  # anywhere in a save, or behind it
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize(("save_every", "split"), [(1, False), (2, False), (1, True)], ids=["1", "2", "1, row by row"])
def test_wherever_a_run_is_killed_it_goes_on_to_the_same_end(world, tmp_path, monkeypatch, save_every, split, kills):
    if split:  # as large banks are stored
        monkeypatch.setattr(tensor_files, "LARGE_BYTES", 0)
        monkeypatch.setattr(tensor_files, "FILE_BYTES", 1)
    train = {"steps": 40, "save_every": save_every, "evaluate_every": 3 * save_every, "rows_per_batch": 4}
    setup = tiny_setup(world, "madx", train=train)
    started = time.monotonic()
    expected = alone(lambda: trained(setup, tmp_path / "whole"), tmp_path / "end")
    usual = time.monotonic() - started
    lot = random.Random(save_every)
    number, done, in_saves, before, stages = 0, 0, 0, 0, set()
    run = tmp_path / "run-0"
    late = tmp_path / "late"
    alone(lambda: until_stage_two(setup, late), tmp_path / "end")
    while done < kills or (in_saves < kills // 5 and done < 4 * kills):  # how often a kill hits a save is chance
        if done == kills // 2 and late.exists():  # on a slow machine short lives may never get so far
            run, before = late.rename(tmp_path / "run-late"), 0
        if not life(setup, run, lot.uniform(0.02, usual / 12), in_save=lot.random() < 0.5):
            number += 1  # it came to its end: begin another
            run, before = tmp_path / f"run-{number}", 0
            continue
        done += 1
        in_saves += bool(leftovers(run))
        assert len(leftovers(run)) <= 1, "a life removes what the one before left"
        total = saved(run)
        assert max(before, logged(run) - save_every) <= total <= logged(run)
        before = total
        stages.add(total > train["steps"])
    for path in sorted(tmp_path.glob("run-*")):
        found = alone(partial(trained, setup, path), tmp_path / "end")
        assert not changed(expected["best"], found["best"])
        assert not changed(expected["memory"], found["memory"])
        assert not leftovers(path)
        assert read_log(path)[-1]["event"] == "done"
    assert in_saves >= kills // 5, f"only {in_saves} of {done} kills were in the middle of a save"
    assert stages == {False, True}, "both stages were hit"
    print(f"{done} kills, {in_saves} in the middle of a save, {number + 1} runs")


def cut_off(setup, run, when, action):
    """Train until `when` checkpoints are there, then let something happen; the error that follows."""

    def on_event(event):
        if isinstance(event, CheckpointSaved) and event.total == when:
            action()

    with pytest.raises(TrainingError) as caught:
        tiny_fit(setup, run, on_event=on_event).run()
    return str(caught.value)


def test_on_a_full_disk_earlier_checkpoints_stay_and_the_run_goes_on_when_there_is_room(world, tmp_path):
    setup = tiny_setup(world)
    expected = alone(lambda: trained(setup, tmp_path / "whole"), tmp_path / "end")
    for file in ("weights.safetensors", "training.safetensors"):
        run = tmp_path / file
        size = (tmp_path / "whole" / "checkpoints" / "step-00000006" / file).stat().st_size
        limit = size - 1 if file.startswith("training") else size // 2
        assert limit > (tmp_path / "whole" / "log.jsonl").stat().st_size
        fill = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        message = alone(partial(cut_off, setup, run, 4, fill), tmp_path / "end")
        assert "step-00000006: the checkpoint of step 6 cannot be written" in message
        assert "File too large" in message
        assert "Free some disk space" in message
        assert saved(run) == 4
        assert not leftovers(run)
        found = alone(partial(trained, setup, run), tmp_path / "end")
        assert not changed(expected["memory"], found["memory"])


def test_two_processes_cannot_train_in_one_folder(world, tmp_path):
    setup, begun = tiny_setup(world), tmp_path / "begun"

    def forever():
        def on_event(event):
            if isinstance(event, CheckpointSaved):
                begun.touch()
                time.sleep(100)

        tiny_fit(setup, tmp_path / "run", on_event=on_event).run()

    def refused():
        with pytest.raises(TrainingError, match="another process is training here"):
            tiny_fit(setup, tmp_path / "run").run()
        return {}

    child = fork(forever)
    while not begun.exists():
        time.sleep(0.01)
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    alone(refused, tmp_path / "end")
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    alone(lambda: trained(setup, tmp_path / "run"), tmp_path / "end")  # free again


def nobody():
    """Root may write everywhere."""
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)


@pytest.fixture
def public():
    """A folder that others may look into, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_that_cannot_be_written_is_said_and_left_as_it_is(world, public, tmp_path):
    setup = tiny_setup(world)
    expected = alone(lambda: trained(setup, public / "whole"), tmp_path / "end")
    public.chmod(0o555)

    def refused():
        nobody()
        with pytest.raises(TrainingError) as caught:
            tiny_fit(setup, public / "new").run()
        return str(caught.value)

    assert "new: cannot be written (Permission denied)" in alone(refused, tmp_path / "end")
    public.chmod(0o777)

    def lock(run):
        for path in (run / "checkpoints", run):
            path.chmod(0o555)
        (run / "log.jsonl").chmod(0o666)
        nobody()

    message = alone(lambda: cut_off(setup, public / "run", 2, lambda: lock(public / "run")), tmp_path / "end")
    assert "the checkpoint of step 4 cannot be written (Permission denied)" in message

    def lock_log(run):
        (run / "log.jsonl").chmod(0o444)
        nobody()

    message = alone(lambda: cut_off(setup, public / "log", 2, lambda: lock_log(public / "log")), tmp_path / "end")
    assert "log.jsonl: cannot be written (Permission denied). Checkpoints are as they were." in message
    for name in ("run", "log"):
        for path in (public / name, public / name / "checkpoints", public / name / "log.jsonl"):
            path.chmod(0o755)
        assert saved(public / name) == 2
        found = alone(partial(trained, setup, public / name), tmp_path / "end")
        assert not changed(expected["memory"], found["memory"])
