"""The matrix of tasks and languages: every score with its signature; zero-shot scores are marked."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.io.sealed import read_sealed
from polyloom.io.untrusted import printable
from polyloom.metrics.score import Score

if TYPE_CHECKING:
    import pandas  # noqa: ICN001

MARK = "⁰"  # behind zero-shot scores
MAX_SCORES = 256 << 20  # bytes of a file of scores, which has the statistics of every sentence


@dataclass(frozen=True)
class Result:
    """The scores of a condition.

    Attributes:
        scores: One per metric of the task, the one that selects checkpoints first.
        zero_shot: Whether no labelled example of this task in this language was seen in training.
        cut: Number of inputs that were longer than the model's maximum and were cut.
        split: Number of sources that were longer and were translated in parts. Through a third language: of all
            translations from the source into it, and from it into the target.
    """

    scores: tuple[Score, ...]
    zero_shot: bool
    cut: int = 0
    split: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Everything, statistics of every sentence included."""
        counts = {"cut": self.cut, "split": self.split}
        return {"zero_shot": self.zero_shot, **counts, "scores": [score.to_dict() for score in self.scores]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        scores = tuple(map(Score.from_dict, stored["scores"]))
        return cls(scores, bool(stored["zero_shot"]), int(stored["cut"]), int(stored["split"]))


@dataclass(frozen=True)
class Matrix:
    """Scores by condition.

    Attributes:
        results: Scores of the conditions that were evaluated.
        refused: Conditions that the method does not support, with the reason.
        run: Path, checkpoint, method and versions of the run.
    """

    results: Mapping[Condition, Result]
    refused: Mapping[Condition, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def languages(self) -> list[str]:
        """Languages, or pairs of them, in the order of the conditions."""
        return list(dict.fromkeys("/".join(condition.languages) for condition in (*self.results, *self.refused)))

    def metrics(self) -> Iterator[tuple[str, str]]:
        """Yield every task with each of its metrics."""
        pairs = ((c.task, score.metric.name) for c, result in self.results.items() for score in result.scores)
        yield from dict.fromkeys(pairs)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per language, with one column per task and metric, and a last row with means."""
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
        """Return the mean over languages; with `zero_shot`, only of zero-shot scores or only of the others."""
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
            "results": {str(condition): result.to_dict() for condition, result in self.results.items()},
            "refused": {str(condition): reason for condition, reason in self.refused.items()},
        }

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `to_dict` wrote."""
        try:
            stored = json.loads(read_sealed(path, MAX_SCORES))
            results = {Condition.parse(name): Result.from_dict(result) for name, result in stored["results"].items()}
            refused = {Condition.parse(name): printable(str(reason)) for name, reason in stored["refused"].items()}
            return cls(results, refused, stored["run"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise PolyloomError(f"{path}: not the scores of an evaluation: {error!r}.") from error

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with one row per condition and metric."""
        try:
            import pandas  # noqa: PLC0415, ICN001 - optional
        except ImportError:
            raise PolyloomError("to_pandas: the package pandas is not installed. pip install pandas") from None
        rows = [
            (str(condition), condition.task, "/".join(condition.languages), score.metric.name, score.value, r.zero_shot)
            for condition, r in self.results.items()
            for score in r.scores
        ]
        return pandas.DataFrame(rows, columns=["condition", "task", "language", "metric", "score", "zero_shot"])

    def to_markdown(self) -> str:
        """Return a table in Markdown; zero-shot scores are marked."""
        rows = self.rows()
        columns = ["language", *(f"{task} {metric}" for task, metric in self.metrics())]
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
        notes = [f"{MARK} zero-shot: no labelled example of this task in this language in training."]
        notes += [f"– {condition}: {reason}" for condition, reason in self.refused.items()]
        return "\n".join([*lines, "", *notes])
