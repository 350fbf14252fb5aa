"""The inputs of a report: the files of each run, and the commands that write missing ones."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyloom.config import Recipe, load_recipe
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.evaluate.saved import read_stored
from polyloom.io.access import Access
from polyloom.io.sealed import read_sealed
from polyloom.loading import access_to
from polyloom.rundir import RunDir
from polyloom.training.history import History

NOTHING = Access(Path(), ())  # nothing but what the user allows
PROBES = ("languages", "swap", "weights", "capacity")


@dataclass(frozen=True)
class Source:
    """One run of a report.

    Attributes:
        path: Its folder, as given.
        name: Its name in the report.
        recipe: Its recipe.
        text: The recipe as a file.
        history: Its log.
        split: Which corpora were scored: ``test`` or ``validation``.
        checkpoint: The checkpoint that the run predicts with.
        matrix: Scores of that checkpoint.
        probes: Results of `polyloom probe`, by kind.
        missing: What is missing, each with a sentence that says why or which command to run.
        access: Which files the recipe may name.
    """

    path: Path
    name: str
    recipe: Recipe
    text: str
    history: History
    split: str
    checkpoint: str | None = None
    matrix: Matrix | None = None
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    access: Access = NOTHING

    @property
    def shell(self) -> str:
        """Its folder, quoted for a shell."""
        return shlex.quote(str(self.path))

    @property
    def evaluation(self) -> str:
        """The command that scores it."""
        return f"polyloom evaluate {self.shell}" + ("" if self.split == "test" else f" --split {self.split}")

    def probing(self, kind: str) -> str:
        """Return the command that probes it."""
        return _probing(self.path, kind, self.recipe, self.split)


def _probing(run: Path, kind: str, recipe: Recipe, split: str) -> str:
    """Return the command that probes a run; of several tasks, `swap` needs one."""
    tasks = list(dict.fromkeys(name.partition("/")[0] for name in getattr(recipe.data, split)))
    task = f" --task {tasks[0]}" if kind == "swap" and len(tasks) > 1 else ""
    return f"polyloom probe {kind} {shlex.quote(str(run))}{task}"


def read_source(path: Path, *, name: str, split: str) -> Source:
    """Read the files of a run.

    Raises:
        CheckpointError: There is no run, or it is damaged.
    """
    folder, missing = RunDir(path), {}
    folder.require()
    matrix, checkpoint = None, folder.best().name if folder.steps() else None
    # A report shows what there is. What is missing, or is of another checkpoint, becomes a sentence with the command
    # that makes it; if there is no checkpoint at all, that sentence is the error of `best`.
    try:
        matrix = read_stored(path, split, checkpoint=checkpoint or folder.best().name)
    except PolyloomError as error:
        missing["scores"] = str(error)
    if not folder.log.exists():
        missing["log"] = f"{folder.log}: no log here, so nothing is known of the training."
    probes, recipe = {}, load_recipe(folder.recipe)
    for kind in PROBES:
        try:
            probes[kind] = _read_probe(folder.probe(kind), checkpoint, again=_probing(path, kind, recipe, split))
        except PolyloomError as error:
            missing[kind] = str(error)
    text, history = folder.recipe_text(), History.read(folder.log)
    return Source(path, name, recipe, text, history, split, checkpoint, matrix, probes, missing, access_to(folder))


def _read_probe(path: Path, checkpoint: str | None, *, again: str) -> Mapping[str, Any]:
    if not path.exists():
        raise PolyloomError(f"Not probed yet. Run: {again}")
    try:
        probe = json.loads(read_sealed(path))
        probed = probe["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PolyloomError(f"{path}: cannot be read ({error!r}). Run again: {again}") from error
    if probed != checkpoint:
        raise PolyloomError(f"{path}: of {probed}, but the run's checkpoint is now {checkpoint}. Run again: {again}")
    return dict(probe)


def read_sources(paths: Sequence[Path], *, split: str = "test") -> list[Source]:
    """Read runs. A run has the name of its folder, or its path if two folders have the same name."""
    twice = [str(path) for number, path in enumerate(paths) if path.resolve() in [p.resolve() for p in paths[:number]]]
    if twice:
        raise PolyloomError(f"report: {', '.join(twice)} given twice. Give each run once.")
    names = [path.name or str(path) for path in paths]
    return [
        read_source(path, name=str(path) if names.count(name) > 1 else name, split=split)
        for path, name in zip(paths, names, strict=True)
    ]
