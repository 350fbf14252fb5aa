"""The folder of a run: its recipe, its log, its checkpoints. `latest` is whatever checkpoint was completed last."""

import fcntl
import json
import os
import re
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polyloom.checkpoint import read_manifest, read_tensors, read_training
from polyloom.errors import CheckpointError, TrainingError
from polyloom.io.atomic import remove_partial, write_text_atomic

RECIPE = "recipe.yaml"


class Saved(NamedTuple):
    """A checkpoint of a run, read and found whole.

    Attributes:
        path: Where it is.
        manifest: What it says of itself.
        weights: What was trained.
        optimizer: The optimizer's state.
        state: Where the run was.
    """

    path: Path
    manifest: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]


class RunDir:
    """Where a run lives.

    Checkpoints are written under another name and renamed when they are complete, so that none is ever half there. No
    file points to the latest: it is the one with the highest number.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._lock: int | None = None

    @property
    def log(self) -> Path:
        """One JSON object per line: what happened."""
        return self.path / "log.jsonl"

    def checkpoint(self, step: int) -> Path:
        """The checkpoint of a step, counted over all stages."""
        return self.checkpoints / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        found = (re.fullmatch(r"step-(\d+)", path.name) for path in self.checkpoints.glob("step-*"))
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Saved | None:
        """The newest checkpoint that can be read; damaged ones are passed over."""
        failures = []
        for path in map(self.checkpoint, reversed(self.steps())):
            try:
                return Saved(path, read_manifest(path), read_tensors(path), *read_training(path))
            except CheckpointError as error:
                failures.append(str(error))
        if failures:
            raise CheckpointError(f"{self.path}: no checkpoint can be read. " + " ".join(failures))
        return None

    def best(self) -> Path:
        """The checkpoint with the best validation score; the newest where nothing was validated."""
        for step in reversed(self.steps()):
            try:
                state = read_manifest(self.checkpoint(step))["training"]["state"]
            except (CheckpointError, KeyError):
                continue
            best = state.get("best_step")
            return self.checkpoint(best if best is not None and self.checkpoint(best).exists() else step)
        raise CheckpointError(f"{self.path}: no checkpoint here. Was it trained? polyloom train RECIPE -o {self.path}")

    def drop(self, step: int) -> None:
        """Remove a checkpoint that could not be read: the run, resumed before it, is about to write it again."""
        if self.checkpoint(step).exists():
            shutil.rmtree(self.checkpoint(step))

    def prune(self, newest: int, *, keep: set[int]) -> None:
        """Remove old checkpoints, but for some of the newest and those to keep."""
        for step in self.steps()[:-newest]:
            if step not in keep:
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def prepare(self) -> None:
        """Make the folder, take it for this process alone, and remove what a killed one left half written."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._take()
            remove_partial(self.path)
            remove_partial(self.checkpoints)
            if self.log.exists() and not (text := self.log.read_bytes()).endswith(b"\n"):
                os.truncate(self.log, text.rfind(b"\n") + 1)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _take(self) -> None:
        """Two processes in one folder would write into each other's log and remove each other's checkpoints."""
        if self._lock is None:
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._lock)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however it ends
        except BlockingIOError:
            raise TrainingError(
                f"{self.path}: another process is training here. Wait for it, or take another folder."
            ) from None

    def write(self, name: str, text: str) -> None:
        """Write a small file atomically."""
        try:
            write_text_atomic(self.path / name, text)
        except OSError as error:
            raise _unwritable(self.path / name, error) from error

    def note(self, event: Mapping[str, Any]) -> None:
        """Append to the log."""
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise _unwritable(self.log, error) from error


def _unwritable(path: Path, error: OSError) -> TrainingError:
    return TrainingError(f"{path}: cannot be written ({error.strerror or error}). Checkpoints are as they were.")
