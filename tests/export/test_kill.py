"""An export that is killed at any place leaves nothing or everything, and the next one works."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from polyloom.cli import app
from polyloom.conditions import Condition
from polyloom.errors import CheckpointError
from polyloom.io.atomic import PARTIAL
from polyloom.loading import load_predictor
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from tests.reliability.forks import DIED, Snapshots, alone, die_at, ended, fork
from tests.shared import polyloom


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole_or_nothing(place: Path, expected: dict[str, bytes]) -> bool:
    """Whether a killed export left everything; anything between is an error."""
    if (place / "out").exists():
        assert files(place / "out") == expected
        load_predictor(place)
        return True
    with pytest.raises(CheckpointError, match="nor an exported adapter"):
        load_predictor(place)
    return False


def partial_exports(place: Path) -> list[Path]:
    return list(place.glob(f".out{PARTIAL}*"))


def test_killed_at_any_place_an_export_leaves_nothing_or_everything(hasty, tmp_path):
    """Or without power: then half is missing of what was not flushed."""
    run, place = Run.load(hasty), tmp_path / "place"
    place.mkdir()
    conditions = [Condition("pos", "aa"), Condition("mlm", "bb")]

    def export(place: Path) -> None:
        export_run(run.loaded, conditions, place / "out", backbone=True)

    def photographed() -> list[str]:
        snapshots = Snapshots(place, tmp_path / "places")
        export(place)
        return snapshots.operations

    operations = Counter(alone(photographed, tmp_path / "end"))
    expected = files(place / "out")
    in_writing, whole, removed = 0, list[bool](), set[int]()
    for left in sorted((tmp_path / "places").iterdir()):
        assert len(partial_exports(left)) <= 1
        in_writing += len(partial_exports(left))
        whole.append(whole_or_nothing(left, expected))
        if not whole[-1] and len(files(left)) not in removed:  # once for each number of files that were written
            removed.add(len(files(left)))
            export(left)
            assert whole_or_nothing(left, expected)
            assert list(left.iterdir()) == [left / "out"], "the next export removes what this one left"
    assert operations["rename"] == 1
    assert in_writing > len(expected), "places in the middle of writing"
    assert whole == sorted(whole), "first nothing, then everything"
    assert whole[-1]
    print(f"{operations.total()} operations, {in_writing} places in writing")


def test_an_export_that_dies_again_and_again_leaves_nothing_but_its_last_attempt(hasty, tmp_path):
    """Each dies at a later one of its places, until one is finished."""
    run = Run.load(hasty)

    def export(number: int) -> None:
        die_at(number)
        export_run(run.loaded, [Condition("pos", "aa"), Condition("mlm", "bb")], tmp_path / "out")

    for number in itertools.count(1, step=5):  # odd and even: before and after an operation
        code = ended(fork(partial(export, number)))
        if (tmp_path / "out").exists():  # it may have died after that
            break
        assert code == DIED
        assert len(partial_exports(tmp_path)) <= 1, "the leftovers of the one before were removed"
    assert number > 5 * 5
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    load_predictor(tmp_path)


def kill(child: int, place: Path, seconds: float, *, in_writing: bool) -> None:
    """Kill a process after so long, or so long after it began to write."""
    end = time.monotonic() + 100
    while in_writing and not partial_exports(place) and time.monotonic() < end:
        time.sleep(0.0005)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)


@pytest.mark.nightly
def test_a_killed_export_of_several_conditions_leaves_nothing_or_everything(hasty, tmp_path):
    started = time.monotonic()
    polyloom("export", hasty, "--all", "--backbone", "-o", tmp_path / "whole")
    usual, expected = time.monotonic() - started, files(tmp_path / "whole")
    place, lot, seen = tmp_path / "place", random.Random(0), 0
    place.mkdir()
    arguments = ["export", str(hasty), "--all", "--backbone", "-o", str(place / "out")]
    for number in range(24):
        in_writing = number % 2 == 0
        seconds = lot.uniform(0, 0.2 * usual if in_writing else usual)
        child = fork(lambda: app(arguments, standalone_mode=False))
        kill(child, place, seconds, in_writing=in_writing)
        ended(child)
        left = partial_exports(place)
        assert len(left) <= 1, "the leftovers of the one before were removed"
        seen += bool(left)
        if whole_or_nothing(place, expected):
            (place / "out").rename(tmp_path / f"out-{number}")
    assert seen > 3, "some were hit while they wrote"
    polyloom("export", hasty, "--all", "--backbone", "-o", place / "out")
    assert whole_or_nothing(place, expected)
    assert list(place.iterdir()) == [place / "out"]


@pytest.mark.nightly
def test_a_killed_command_leaves_nothing_or_everything(hasty, tmp_path):
    polyloom("export", hasty, "--all", "-o", tmp_path / "whole")
    expected, lot = files(tmp_path / "whole"), random.Random(1)
    command = [sys.executable, "-m", "polyloom", "export", hasty, "--all", "-o", tmp_path / "out"]
    for number in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        kill(process.pid, tmp_path, lot.uniform(0, 0.1), in_writing=True)
        process.wait()
        if (tmp_path / "out").exists():
            assert files(tmp_path / "out") == expected
            (tmp_path / "out").rename(tmp_path / f"out-{number}")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert files(tmp_path / "out") == expected
    assert not list(tmp_path.glob(f".*{PARTIAL}*"))
