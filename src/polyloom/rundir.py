"""The directory of a run. All names of its files are defined here.

``recipe.yaml``, ``log.jsonl``, ``checkpoints/``, ``evaluations/SPLIT.json``, ``probes/KIND.json``, ``tensorboard/``,
and ``backbone/`` if tokens were added to the backbone.
"""

import fcntl
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
from polyloom.io.plain_json import to_json


class Saved(NamedTuple):
    """A checkpoint of a run that was read without errors.

    Attributes:
        path: Directory of the checkpoint.
        manifest: Content of its manifest.
        weights: Trained parameters by name.
        optimizer: State of the optimizer.
        state: Progress of the run.
    """

    path: Path
    manifest: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]


class RunDir:
    """The directory of a run.

    Checkpoints are written under another name and renamed when they are complete. No file points to the latest
    checkpoint: it is the one with the highest number.

    Args:
        path: The directory; it need not exist yet.

    Attributes:
        recipe: The recipe, with all its settings.
        log: One JSON object per line and event.
        checkpoints: Directory of the checkpoints.
        tensorboard: Directory of TensorBoard's curves.
        backbone: Backbone and tokenizer of a run with added tokens.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.yaml"
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.backbone = self.path / "backbone"
        self._lock: int | None = None

    def evaluation(self, split: str) -> Path:
        """Return the file with the scores of a split."""
        return self.path / "evaluations" / f"{split}.json"

    def probe(self, kind: str) -> Path:
        """Return the file with the results of a probe."""
        return self.path / "probes" / f"{kind}.json"

    def checkpoint(self, step: int) -> Path:
        """Return the checkpoint of a step, counted over all stages."""
        return self.checkpoints / f"step-{step:08d}"

    def exists(self) -> bool:
        """Return whether there is a run in the directory."""
        return self.recipe.is_file()

    def require(self) -> None:
        """Raise an error unless there is a run in the directory."""
        if not self.exists():
            raise CheckpointError(
                f"{self.path}: no run here (no {self.recipe.name}). Train one: polyloom train RECIPE -o {self.path}"
            )

    def require_empty(self) -> None:
        """Raise an error if the directory has a run with checkpoints."""
        if self.steps():
            raise TrainingError(f"{self.path}: there is a run already. Choose another folder.")

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint, in order."""
        matches = (re.fullmatch(r"step-(\d+)", path.name) for path in self.checkpoints.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> Saved | None:
        """Read the newest checkpoint that is readable; damaged ones are skipped."""
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
        """Return the checkpoint with the best validation score; without validation, the newest."""
        for step in reversed(self.steps()):
            try:
                state = read_manifest(self.checkpoint(step))["training"]["state"]
            except (CheckpointError, KeyError):
                continue
            best = state.get("best_step")
            return self.checkpoint(best if best is not None and self.checkpoint(best).exists() else step)
        raise CheckpointError(f"{self.path}: no checkpoint here. Was it trained? polyloom train RECIPE -o {self.path}")

    def drop(self, step: int) -> None:
        """Remove a checkpoint that could not be read, before the resumed run writes it again."""
        if self.checkpoint(step).exists():
            shutil.rmtree(self.checkpoint(step))

    def set_aside(self, first: float) -> list[str]:
        """Rename checkpoints from a step on to ``diverged-…``, so that nothing uses them; return their new names."""
        renamed = []
        for step in self.steps():
            if step >= first:
                aside = self.checkpoints / f"diverged-{step:08d}"
                shutil.rmtree(aside, ignore_errors=True)
                renamed.append(self.checkpoint(step).rename(aside).name)
        return renamed

    def prune(self, newest: int, *, keep: set[int]) -> None:
        """Remove old checkpoints, except the `newest` ones and those to keep."""
        for step in self.steps()[:-newest]:
            if step not in keep:
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def prepare(self) -> None:
        """Create the directory, lock it for this process, and remove what a killed process left incomplete."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock_directory()
            remove_partial(self.path)
            remove_partial(self.checkpoints)
            if self.log.exists() and not (text := self.log.read_bytes()).endswith(b"\n"):
                os.truncate(self.log, text.rfind(b"\n") + 1)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _lock_directory(self) -> None:
        """Raise an error if another process uses the directory; both would write to the same log and checkpoints."""
        if self._lock is None:
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._lock)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock ends with the process
        except BlockingIOError:
            raise TrainingError(
                f"{self.path}: another process is training here. Wait for it, or take another folder."
            ) from None

    def write(self, path: Path, text: str) -> Path:
        """Write one of the run's text files atomically."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(path, text)
        except OSError as error:
            raise _unwritable(path, error) from error
        return path

    def note(self, event: Mapping[str, Any]) -> None:
        """Append an event to the log."""
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(to_json(event) + "\n")
        except OSError as error:
            raise _unwritable(self.log, error) from error


def _unwritable(path: Path, error: OSError) -> TrainingError:
    return TrainingError(f"{path}: cannot be written ({error.strerror or error}). Checkpoints are as they were.")
