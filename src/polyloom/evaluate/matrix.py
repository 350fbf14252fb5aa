"""The matrix of tasks and languages: every score with its signature, zero-shot cells marked."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.metrics.score import Score

MARK = "⁰"  # of zero-shot cells


@dataclass(frozen=True)
class Result:
    """The scores of a condition, the one that selects first.

    Attributes:
        scores: By the task's metrics.
        zero_shot: Whether no labelled example of this task in this language was seen in training.
    """

    scores: tuple[Score, ...]
    zero_shot: bool


@dataclass(frozen=True)
class Matrix:
    """Scores by condition.

    Attributes:
        results: What was measured.
        refused: What the method cannot serve, and why.
        run: Where the model came from, for whoever traces a number.
    """

    results: Mapping[Condition, Result]
    refused: Mapping[Condition, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def languages(self) -> list[str]:
        """Languages, or pairs of them, in the order of the cells."""
        return list(dict.fromkeys("/".join(condition.languages) for condition in (*self.results, *self.refused)))

    def metrics(self) -> Iterator[tuple[str, str]]:
        """Every task with every one of its metrics."""
        pairs = ((c.task, score.metric.name) for c, result in self.results.items() for score in result.scores)
        yield from dict.fromkeys(pairs)

    def rows(self) -> list[dict[str, Any]]:
        """One row per language, one column per task and metric; a last row with means."""
        columns = list(self.metrics())
        table: dict[str, dict[str, Any]] = {language: {"language": language} for language in self.languages}
        for condition, result in self.results.items():
            row = table["/".join(condition.languages)]
            for score in result.scores:
                mark = MARK if result.zero_shot else ""
                row[f"{condition.task} {score.metric.name}"] = f"{score.value:.2f}{mark}"
        for condition in self.refused:
            for task, metric in columns:
                if task == condition.task:
                    table["/".join(condition.languages)].setdefault(f"{task} {metric}", "–")
        means = {"language": "mean"}
        for task, metric in columns:
            means[f"{task} {metric}"] = f"{self.mean(task, metric):.2f}"
        return [*table.values(), means]

    def mean(self, task: str, metric: str, *, zero_shot: bool | None = None) -> float:
        """Mean over languages, of zero-shot cells only or of the others only if so wanted."""
        values = [
            score.value
            for condition, result in self.results.items()
            for score in result.scores
            if (condition.task, score.metric.name) == (task, metric) and zero_shot in (None, result.zero_shot)
        ]
        return float(np.mean(values)) if values else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Everything, parts of every sentence included."""
        return {
            "run": dict(self.run),
            "results": {
                str(condition): {"zero_shot": result.zero_shot, "scores": [score.to_dict() for score in result.scores]}
                for condition, result in self.results.items()
            },
            "refused": {str(condition): reason for condition, reason in self.refused.items()},
        }

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `to_dict` wrote."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            results = {
                Condition.parse(name): Result(tuple(map(Score.from_dict, result["scores"])), bool(result["zero_shot"]))
                for name, result in stored.get("results", stored.get("cells")).items()  # former name
            }
            refused = {Condition.parse(name): str(reason) for name, reason in stored["refused"].items()}
            return cls(results, refused, stored["run"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PolyloomError(f"{path}: not the scores of an evaluation: {error!r}.") from error

    def to_markdown(self) -> str:
        """A table for documents; zero-shot cells are marked."""
        rows = self.rows()
        columns = ["language", *(f"{task} {metric}" for task, metric in self.metrics())]
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
        notes = [f"{MARK} zero-shot: no labelled example of this task in this language in training."]
        notes += [f"– {condition}: {reason}" for condition, reason in self.refused.items()]
        return "\n".join([*lines, "", *notes])
