"""What a report is made from: the files of a run, and which command makes those that are not there."""

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
from polyloom.rundir import RunDir

PROBES = ("languages", "swap", "weights", "capacity")
Event = Mapping[str, Any]


@dataclass
class History:
    """What the log of a run tells, without what was taken back when the run was resumed from before it.

    Attributes:
        begin: Versions and hashes of corpora.
        stages: As they began, each with what learns in it; once, however often it was resumed.
        mixtures: Of each stage, its cells.
        steps: All steps, in order.
        validations: All validations, in order.
        shares: How much of the weights is a language's own, by stage.
        done: How it ended; empty if it has not.
    """

    begin: Event = field(default_factory=dict)
    stages: dict[str, Event] = field(default_factory=dict)
    mixtures: dict[str, Sequence[Sequence[Any]]] = field(default_factory=dict)
    steps: list[Event] = field(default_factory=list)
    validations: list[Event] = field(default_factory=list)
    shares: dict[str, Event] = field(default_factory=dict)
    done: Event = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "History":
        """Read a log; a last line that is still being written is passed over."""
        history, stage = cls(), ""
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
                stage = event["stage"] if event["event"] == "stage" else stage
                history._take(event, stage)
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise PolyloomError(f"{path}:{number}: not an event of a run ({error!r}).") from error
        return history

    def _take(self, event: Event, stage: str) -> None:
        kind = event["event"]
        if kind in ("step", "skipped"):
            self.steps.append(event)
        elif kind == "validation":
            self.validations.append(event)
        elif kind == "resumed":
            self.steps = [step for step in self.steps if step["total"] <= event["total"]]
            self.validations = [one for one in self.validations if one["total"] <= event["total"]]
        elif kind == "stage":
            self.stages.setdefault(stage, event)
        elif kind == "mixture":
            self.mixtures[stage] = event["datasets"]
        elif kind == "languages":
            self.shares[event["stage"]] = event
        elif kind in ("begin", "done"):
            setattr(self, kind, event)


@dataclass(frozen=True)
class Source:
    """One run of a report.

    Attributes:
        path: Its folder, as it was given.
        name: What the report calls it.
        recipe: Its recipe.
        text: The recipe as written.
        history: Its log.
        split: Which corpora were scored.
        checkpoint: The one that the run answers with.
        matrix: Scores of that checkpoint.
        probes: What `polyloom probe` found of it, by name.
        missing: What is not there, by name, each with a sentence that says why or what to do.
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

    @property
    def shell(self) -> str:
        """Its folder as a shell takes it."""
        return shlex.quote(str(self.path))

    @property
    def evaluation(self) -> str:
        """The command that scores it."""
        return f"polyloom evaluate {self.shell}" + ("" if self.split == "test" else f" --on {self.split}")

    def probing(self, kind: str) -> str:
        """The command that probes it."""
        return _probing(self.path, kind, self.recipe, self.split)


def _probing(run: Path, kind: str, recipe: Recipe, split: str) -> str:
    """Donors are those of one task, which must be said where there are several."""
    tasks = list(dict.fromkeys(name.partition("/")[0] for name in getattr(recipe.data, split)))
    task = f" --task {tasks[0]}" if kind == "swap" and len(tasks) > 1 else ""
    return f"polyloom probe {kind} {shlex.quote(str(run))}{task}"


def read_source(path: Path, *, name: str, split: str) -> Source:
    """Read all that is there of a run.

    Raises:
        CheckpointError: There is no run.
    """
    folder, missing = RunDir(path), {}
    folder.require()
    matrix = checkpoint = None
    try:
        checkpoint = folder.best().name
        matrix = read_stored(path, split, checkpoint=checkpoint)
    except PolyloomError as error:
        missing["scores"] = str(error)
    if not folder.log.exists():
        missing["log"] = f"{folder.log}: not there, so nothing is known of the training."
    probes, recipe = {}, load_recipe(folder.recipe)
    for kind in PROBES:
        try:
            probes[kind] = _read_probe(folder.probe(kind), checkpoint, again=_probing(path, kind, recipe, split))
        except PolyloomError as error:
            missing[kind] = str(error)
    text, history = folder.recipe.read_text(encoding="utf-8"), History.read(folder.log)
    return Source(path, name, recipe, text, history, split, checkpoint, matrix, probes, missing)


def _read_probe(path: Path, checkpoint: str | None, *, again: str) -> Mapping[str, Any]:
    if not path.exists():
        raise PolyloomError(f"Not probed yet. Do it: {again}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        of = found["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolyloomError(f"{path}: cannot be read ({error!r}). Make it anew: {again}") from error
    if of != checkpoint:
        raise PolyloomError(f"{path}: of {of}, but the run's checkpoint is now {checkpoint}. Make it anew: {again}")
    return dict(found)


def read_sources(paths: Sequence[Path], *, split: str = "test") -> list[Source]:
    """Read runs; they are called by their folders' names, or by their paths where two have the same."""
    twice = [str(path) for number, path in enumerate(paths) if path.resolve() in [p.resolve() for p in paths[:number]]]
    if twice:
        raise PolyloomError(f"report: {', '.join(twice)} given twice. Name every run once.")
    names = [path.name or str(path) for path in paths]
    return [
        read_source(path, name=str(path) if names.count(name) > 1 else name, split=split)
        for path, name in zip(paths, names, strict=True)
    ]
