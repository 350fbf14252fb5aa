"""An export that is killed at any instant leaves nothing or everything, and the next one works."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyloom.cli import app
from polyloom.errors import CheckpointError
from polyloom.io.atomic import PARTIAL
from polyloom.loading import load_predictor
from tests.reliability.forks import ended, fork
from tests.shared import polyloom


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def whole_or_nothing(place: Path, expected: set[str]) -> bool:
    """Whether a killed export left everything; anything between is an error."""
    if (place / "out").exists():
        assert files(place / "out") == expected
        load_predictor(place)
        return True
    with pytest.raises(CheckpointError, match="nor an exported adapter"):
        load_predictor(place)
    return False


def kill(child: int, place: Path, seconds: float, *, in_writing: bool) -> None:
    """Kill a process after so long, or so long after it began to write."""
    end = time.monotonic() + 100
    while in_writing and not list(place.glob(f".out{PARTIAL}*")) and time.monotonic() < end:
        time.sleep(0.0005)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)


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
        left = list(place.glob(f".out{PARTIAL}*"))
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
