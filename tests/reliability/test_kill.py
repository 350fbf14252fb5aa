"""Killed at any place, on a full disk, in a folder that cannot be written: at most one interval is lost."""

import contextlib
import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from polyloom import tensor_files
from polyloom.checkpoint import MANIFEST, read_tensors
from polyloom.errors import TrainingError
from polyloom.metrics.score import ACCURACY, Score
from polyloom.rundir import RunDir
from polyloom.training.events import CheckpointSaved, StepTaken
from tests.reliability.forks import DIED, Snapshots, alone, die_at, ended, fork, read_log
from tests.reliability.tiny import changed, saved, tiny_fit, tiny_setup, weights

SAVES = 4  # of the short runs
# Each has two stages, of which the first goes back to its first checkpoint and the second ends with its last.
SHORT_RUNS = {"2": {"steps": 3, "save_every": 2}, "1": {"steps": 2, "save_every": 1}}


def by_lot(model, plan):
    """A score that depends on the weights alone, and says nothing of them: any checkpoint may be the best."""
    bits = b"".join(p.detach().numpy().tobytes() for p in model.method.parameters())
    lot = hashlib.sha256(bits).digest()[0]
    return {plan.datasets[0].condition: Score(ACCURACY, np.array([[lot, 256]]), "by lot")}


def by_step(setup):
    """Scores that fall in the first stage and rise in the second, and the events that they need."""
    total = 0

    def on_event(event):
        nonlocal total
        total = event.total if isinstance(event, StepTaken) else total

    def validate(model, plan):
        correct = 100 + (total if total > setup.recipe.train.steps else -total)
        return {plan.datasets[0].condition: Score(ACCURACY, np.array([[correct, 256]]), "by step")}

    return {"validate": validate, "on_event": on_event}


def trained(setup, run, **more):
    """Train to the end; the weights of the best checkpoint and those in memory."""
    best = tiny_fit(setup, run, **({"validate": by_lot} | more)).run()
    return {"best": read_tensors(best), "memory": weights(setup)}


def leftovers(run):
    return list((run / "checkpoints").glob(".step-*.partial-*"))


def logged(run):
    """The last step that the log knows of; its last line may be half a line."""
    lines = (run / "log.jsonl").read_text().splitlines() if (run / "log.jsonl").exists() else []
    steps = [json.loads(line)["total"] for line in lines if line.startswith('{"event": "step"') and line.endswith("}")]
    return steps[-1] if steps else 0


def newest(run):
    """The step of the newest checkpoint; an error if it cannot be read."""

    def refuse(path, error):
        raise AssertionError(f"{path} cannot be read") from error

    found = RunDir(run).latest(on_skip=refuse)
    return found.state["total"] if found else 0


def digest(folder):
    """A hash of all names and contents of a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)}\n".encode() + (path.read_bytes() if path.is_file() else b""))
    return found.hexdigest()


@pytest.fixture(params=["2", pytest.param("1", marks=pytest.mark.nightly), "1, rows in files"])
def short(request, world, monkeypatch):
    """A run of four saves, and the number of steps between them; with rows in files, as large banks are stored."""
    name, _, in_files = request.param.partition(", ")
    if in_files:
        monkeypatch.setattr(
            tensor_files.StoredBank, "rows_per_file", lambda bank, _: 2 * bank.name.endswith("language_adapters")
        )
    train = SHORT_RUNS[name] | {"evaluate_every": SHORT_RUNS[name]["save_every"], "rows_per_batch": 4, "keep_last": 1}
    one_by_one = {"strategy": "round-robin", "temperature": 1.0, "datasets_per_batch": 1}  # rows of one language change
    mixture = one_by_one if in_files else {}
    setup = tiny_setup(world, {"name": "madx", "train_head": False}, train=train, mixture=mixture)
    return setup, train["save_every"], bool(in_files)


def test_killed_at_any_place_a_run_goes_on_to_the_same_end(short, tmp_path):
    """Or without power: then half is missing of what was not flushed."""
    setup, save_every, in_files = short

    def photographed():
        snapshots = Snapshots(tmp_path / "whole", tmp_path / "places")
        return trained(setup, tmp_path / "whole", **by_step(setup)) | {"operations": snapshots.operations}

    # Beginning costs more than these few steps. So nobody trains up to each place and dies there: one run shows what it
    # would leave at all of its places, and others resume from that. Those of the next test do die.
    expected = alone(photographed, tmp_path / "end")
    left = RunDir(tmp_path / "whole").steps()
    operations = Counter(expected["operations"])
    before, stages, in_saves, in_removals, known = 0, set(), 0, 0, set()
    for run in sorted((tmp_path / "places").iterdir()):
        total, partial_folders = newest(run), leftovers(run)
        assert max(before, logged(run) - save_every) <= total <= logged(run), run.name
        before = total
        stages.add(total > setup.recipe.train.steps)
        in_saves += len(partial_folders)
        in_removals += any(not (path / MANIFEST).exists() for path in (run / "checkpoints").glob("step-*"))
        assert len(partial_folders) <= 1
        # Every life begins by this. Folders that are alike after it end alike, so one of them is enough.
        RunDir(run).prepare()
        assert not leftovers(run)
        if (state := digest(run)) in known:
            continue
        known.add(state)
        found = alone(partial(trained, setup, run, **by_step(setup)), tmp_path / "end")
        assert not changed(expected["best"], found["best"]), run.name
        assert not changed(expected["memory"], found["memory"]), run.name
        if total < left[-1]:  # else it was killed in its last removal, and a life without steps removes nothing
            assert RunDir(run).steps() == left, "what is old was removed"
        assert not leftovers(run)
        assert read_log(run)[-1]["event"] == "done"
    assert operations["rename"] == SAVES
    assert operations.keys() >= {"mkdir", "open", "fsync", "rename", "unlink", "rmdir"}
    assert ("link" in operations) == in_files
    assert stages == {False, True}, "both stages were hit"
    assert in_saves >= 4 * SAVES, "places in the middle of a save"
    assert in_removals > 1, "places in the middle of the removal of a checkpoint"
    assert len(known) >= 4 * SAVES
    print(f"{operations.total()} operations, {in_saves} places in saves, {in_removals} in removals, {len(known)} runs")


def test_killed_again_and_again_a_run_goes_on_to_the_same_end(world, tmp_path):
    """Each life of the same run ends at a later one of its places, until one comes to the end."""
    train = SHORT_RUNS["2"] | {"evaluate_every": 2, "rows_per_batch": 4, "keep_last": 1}
    setup = tiny_setup(world, "madx", train=train)
    expected = alone(lambda: trained(setup, tmp_path / "whole", **by_step(setup)), tmp_path / "end")
    run, before, in_saves, totals = tmp_path / "run", 0, 0, set()

    def life(place):
        die_at(place)
        trained(setup, run, **by_step(setup))

    for place in itertools.count(1, step=5):  # odd and even: before and after an operation
        if not (code := ended(fork(partial(life, place)))):
            break
        total = newest(run)
        assert code == DIED
        assert max(before, logged(run) - train["save_every"]) <= total <= logged(run)
        assert len(leftovers(run)) <= 1, "a life removes what the one before left"
        in_saves += len(leftovers(run))
        totals.add(total)
        before = total
    assert in_saves > 1
    assert len(totals) > 2, "it goes on"
    found = alone(lambda: trained(setup, run, **by_step(setup)), tmp_path / "end")
    assert not changed(expected["best"], found["best"])
    assert not changed(expected["memory"], found["memory"])
    assert not leftovers(run)
    print(f"{len(range(1, place, 5))} lives, {in_saves} of them ended in a save")


def test_killed_at_any_place_a_text_file_is_the_old_one_or_the_new_one(tmp_path):
    """Recipe, scores and probes: what a run replaces. Or without power, as above."""
    run = RunDir(tmp_path / "run")
    run.write(run.recipe, "old\n")

    def photographed():
        Snapshots(run.path, tmp_path / "places")
        run.write(run.recipe, "new\n")

    alone(photographed, tmp_path / "end")
    texts = []
    for place in map(RunDir, sorted((tmp_path / "places").iterdir())):
        assert len(list(place.path.iterdir())) <= 2, "and one that a killed process left"
        texts.append(place.recipe_text())
        place.write(place.recipe, "next\n")
        assert list(place.path.iterdir()) == [place.recipe]
    assert texts == sorted(texts, reverse=True), "first the old one, then the new one"
    assert set(texts) == {"old\n", "new\n"}
    assert len(texts) > 3


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


@pytest.mark.nightly
@pytest.mark.parametrize(("save_every", "split"), [(1, False), (2, False), (1, True)], ids=["1", "2", "1, row by row"])
def test_killed_at_random_moments_a_run_goes_on_to_the_same_end(world, tmp_path, monkeypatch, save_every, split):
    """With real signals, of which a process knows nothing: also in the middle of writing a tensor."""
    kills = 100
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
                signal.pause()

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
