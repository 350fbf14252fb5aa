"""The directory of a run. All names of its files are defined here.

``recipe.yaml``, ``log.jsonl``, ``checkpoints/``, ``evaluations/SPLIT.json``, ``probes/KIND.json``, ``tensorboard/``,
and ``backbone/`` if tokens were added to the backbone. All text files are sealed, the log line by line.
"""

import os
import re
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from polyloom.checkpoint import Parts, read_manifest, read_parts, read_training
from polyloom.errors import CheckpointError, DamagedError, TrainingError, suggest
from polyloom.io.atomic import remove_partial, write_text_atomic
from polyloom.io.locks import lock, lock_for_process
from polyloom.io.machine_notes import is_noted, note
from polyloom.io.plain_json import to_json
from polyloom.io.sealed import read_sealed, seal, seal_line

_OWN = "recipe:"  # begins notes about recipes
LOCK_SECONDS = 60.0  # to wait for another process that updates the same file


class Saved(NamedTuple):
    """A checkpoint of a run that was read without errors."""

    path: Path
    """Directory of the checkpoint."""
    manifest: Mapping[str, Any]
    """Content of its manifest."""
    weights: Parts
    """Trained parameters by name, in parts."""
    optimizer: Mapping[str, Tensor]
    """State of the optimizer."""
    state: Mapping[str, Any]
    """Progress of the run."""


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
        """Raise an error unless there is a run in the directory, with its recipe as it was written."""
        if not self.exists():
            raise CheckpointError(
                f"{self.path}: no run here (no {self.recipe.name}). Train one: polyloom train RECIPE -o {self.path}"
            )
        self.recipe_text()

    def recipe_text(self) -> str:
        """Read the recipe as a text; raise an error if it was changed."""
        try:
            return read_sealed(self.recipe, editable=True)
        except (OSError, UnicodeDecodeError) as error:
            raise DamagedError(f"{self.recipe}: cannot be read: {error}") from error

    def write_recipe(self, text: str, *, own: bool) -> None:
        """Write the recipe. If this user trains it (`own`), the run may read all files that it names."""
        self.write(self.recipe, text)
        if own:
            note(_OWN + text)

    def is_own(self) -> bool:
        """Return whether this user trained the run, on this machine."""
        return is_noted(_OWN + self.recipe_text())

    def require_empty(self) -> None:
        """Raise an error if the directory has a run with checkpoints."""
        if self.steps():
            raise TrainingError(f"{self.path}: there is a run already. Choose another folder.")

    def steps(self) -> list[int]:
        """List the steps that have a checkpoint, in order."""
        matches = (re.fullmatch(r"step-(\d+)", path.name) for path in self.checkpoints.glob("step-*"))
        return sorted(int(match[1]) for match in matches if match)

    def latest(self, *, on_skip: Callable[[Path, CheckpointError], None] = lambda *_: None) -> Saved | None:
        """Read the newest checkpoint that is readable, to resume training.

        Args:
            on_skip: Called with every newer checkpoint that cannot be read, and the reason.
        """
        failures = []
        for path in map(self.checkpoint, reversed(self.steps())):
            try:
                return Saved(path, read_manifest(path), read_parts(path), *read_training(path))
            except CheckpointError as error:
                failures.append(str(error))
                on_skip(path, error)
        if failures:
            raise CheckpointError(f"{self.path}: no checkpoint can be read. " + " ".join(failures))
        return None

    def best(self) -> Path:
        """Return the checkpoint with the best validation score; without validation, the newest.

        The newest checkpoint says which one is the best. If it is damaged, this is not known: no other one is used.
        """
        steps = self.steps()
        if not steps:
            raise CheckpointError(
                f"{self.path}: no checkpoint here. Was it trained? polyloom train RECIPE -o {self.path}"
            )
        newest = self.checkpoint(steps[-1])
        with self.advising():
            try:
                step = read_manifest(newest)["training"]["state"]["best_step"]
                best = newest if step is None else self.checkpoint(step)
            except (KeyError, TypeError, ValueError) as error:
                raise CheckpointError(f"{newest}: not a checkpoint of a run: {error!r}") from error
            read_manifest(best)
        return best

    def choose(self, name: str | None) -> Path:
        """Return the checkpoint of a name such as ``step-00000200``; without a name, the best one."""
        if name is None:
            return self.best()
        known = [self.checkpoint(step).name for step in self.steps()]
        if name not in known:
            raise CheckpointError(f"{self.path}: no checkpoint {name!r} here. {suggest(name, known)}")
        return self.checkpoints / name

    @contextmanager
    def advising(self) -> Iterator[None]:
        """Add advice for recovery to the error of a damaged checkpoint."""
        try:
            yield
        except DamagedError as error:
            known = ", ".join(self.checkpoint(step).name for step in self.steps())
            raise DamagedError(
                f"{error} No other checkpoint is used in its place. Copy it again, or resume the training; or choose a "
                f"checkpoint yourself: --checkpoint of predict, evaluate and export. There are: {known}."
            ) from error

    def drop(self, step: int) -> None:
        """Remove a checkpoint that could not be read, before the resumed run writes it again."""
        if self.checkpoint(step).exists():
            shutil.rmtree(self.checkpoint(step))

    def prune(self, newest: int, *, keep: set[int]) -> None:
        """Remove old checkpoints, except the `newest` ones and those to keep."""
        for step in self.steps()[:-newest]:
            if step not in keep:
                shutil.rmtree(self.checkpoint(step), ignore_errors=True)

    def prepare(self) -> None:
        """Create the directory, lock it for this process, and remove what a killed process left incomplete.

        Raises:
            TrainingError: Another process uses the directory. Both would write to the same log and checkpoints.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
                weakref.finalize(self, os.close, self._lock)
            try:
                lock_for_process(self._lock)
            except BlockingIOError:
                raise TrainingError(
                    f"{self.path}: another process is training here. Wait for it, or take another folder."
                ) from None
            # From here on, files of writers are those of dead ones, and half a line of the log is the last one.
            remove_partial(self.path)
            remove_partial(self.checkpoints)
            if self.log.exists() and not (text := self.log.read_bytes()).endswith(b"\n"):
                os.truncate(self.log, text.rfind(b"\n") + 1)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def write(self, path: Path, text: str) -> Path:
        """Write one of the run's text files, sealed and atomically."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomic(path, seal(text))
        except OSError as error:
            raise _unwritable(path, error) from error
        return path

    @contextmanager
    def updating(self, path: Path) -> Iterator[None]:
        """Let only one process at a time read and rewrite one of the run's files; others wait."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path.parent.with_name(f".{path.parent.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    lock(descriptor, wait=False)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TrainingError(
                            f"{path}: another process has been writing it for a minute. Try again."
                        ) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)  # which also ends the lock, as the end of the process does

    def note(self, event: Mapping[str, Any]) -> None:
        """Append an event to the log."""
        try:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(seal_line(to_json(event)) + "\n")
        except OSError as error:
            raise _unwritable(self.log, error) from error


def _unwritable(path: Path, error: OSError) -> TrainingError:
    return TrainingError(f"{path}: cannot be written ({error.strerror or error}). Checkpoints are as they were.")
