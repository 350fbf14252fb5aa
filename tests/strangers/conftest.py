"""Runs and exports that come from somebody else: they were made with another cache."""

import io
import shutil
import sys
from pathlib import Path

import pytest

from polyloom.cli import main
from polyloom.config import load_recipe
from polyloom.io import access
from polyloom.workflows.train import train_recipe
from tests.tiny_run import tiny_recipe


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """A folder with a run, its backbone inside, scores, a log, and exports with their backbone, in three formats."""
    folder = tmp_path_factory.mktemp("theirs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("POLYLOOM_CACHE", str(folder / "cache"))
        run = folder / "run"
        recipe = tiny_recipe(run, train={"steps": 4, "rows_per_batch": 8, "evaluate_every": 2})
        train_recipe(load_recipe(recipe), run)
        lora = tiny_recipe(run, {"name": "hyperx", "block": "lora"}, train={"steps": 2, "rows_per_batch": 8})
        train_recipe(load_recipe(lora), folder / "lora")
        for arguments in (
            ("evaluate", run, "--tasks", "pos"),
            ("probe", "weights", run),
            ("export", run, "pos/aa", "--backbone", "-o", folder / "own"),
            ("export", run, "pos/aa", "--format", "adapterhub", "--backbone", "-o", folder / "adapterhub"),
            ("export", folder / "lora", "pos/aa", "--format", "peft", "--backbone", "-o", folder / "peft"),
        ):
            assert call(*arguments) == 0, arguments
    return folder


@pytest.fixture
def copied(theirs, tmp_path, monkeypatch):
    """Copy one of these folders to a machine that knows nothing of it."""
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(access, "_allowed", [])
    return lambda name: Path(shutil.copytree(theirs / name, tmp_path / name))


def call(*arguments: object, stdin: bytes = b"ba do fi\n") -> int:
    """Run a command in this process; return its exit code."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["polyloom", *map(str, arguments)])
        patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
