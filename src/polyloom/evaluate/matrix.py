"""The matrix of tasks and languages: every score with its signature; zero-shot scores are marked."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.io.sealed import read_sealed
from polyloom.io.untrusted import printable
from polyloom.metrics.score import Score

if TYPE_CHECKING:
    import pandas  # noqa: ICN001

MARK = "⁰"  # behind zero-shot scores
Column = tuple[str, str]  # a task and one of its metrics
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
        """Return everything, statistics of every sentence included."""
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

    def metrics(self) -> list[Column]:
        """List every task with each of its metrics."""
        pairs = ((c.task, score.metric.name) for c, result in self.results.items() for score in result.scores)
        return list(dict.fromkeys(pairs))

    def cell(self, condition: Condition, metric: str) -> "Cell":
        """Return what a table shows of a condition: its score, or why there is none."""
        result = self.results.get(condition)
        for score in result.scores if result else ():
            if score.metric.name == metric:
                return Cell(score, zero_shot=result.zero_shot if result else False)
        return Cell(None, refusal=self.refused.get(condition))

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
        """Return everything, statistics of every sentence included."""
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
        table = score_table([self])
        heads = ["language", *(f"{task} {metric}" for task, metric in table.columns)]
        rows = [
            [name, *(cell.text() for (cell,) in cells)] for name, cells in zip(table.rows, table.cells, strict=True)
        ]
        rows += [[name, *(score_text(mean) for (mean,) in means)] for name, means in table.means]
        lines = ["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]]
        notes = [f"{MARK} zero-shot: no labelled example of this task in this language in training."]
        notes += [f"– {condition}: {reason}" for condition, reason in self.refused.items()]
        return "\n".join([*lines, "", *notes])


class Cell(NamedTuple):
    """What a table shows of a condition and a metric.

    Attributes:
        score: The score. Default: none.
        zero_shot: Whether it is zero-shot. Default: no.
        refusal: Why the method does not support the condition. Default: it does, or it was not asked for.
    """

    score: Score | None = None
    zero_shot: bool = False
    refusal: str | None = None

    def text(self, *, digits: int = 2) -> str:
        """Write the score with the mark of zero-shot scores; a dash for a refusal, nothing where there is no score."""
        if self.score is None:
            return "" if self.refusal is None else "–"
        return f"{self.score.value:.{digits}f}{MARK if self.zero_shot else ''}"


@dataclass(frozen=True)
class ScoreTable:
    """The scores of one run or several by language, task and metric. Commands and reports render it.

    Attributes:
        columns: Tasks with their metrics.
        rows: Languages, or pairs of them.
        cells: For each row and column the cell of each run.
        means: Names of the rows of means, with the mean of each run for each column; NaN where there are no scores.
    """

    columns: Sequence[Column]
    rows: Sequence[str]
    cells: Sequence[Sequence[Sequence[Cell]]]
    means: Sequence[tuple[str, Sequence[Sequence[float]]]]


def score_table(matrices: Sequence[Matrix], columns: Sequence[Column] | None = None) -> ScoreTable:
    """Arrange the scores of runs as a table.

    Args:
        matrices: The scores of each run.
        columns: Tasks and metrics. Default: all.
    """
    if columns is None:
        columns = list(dict.fromkeys(column for matrix in matrices for column in matrix.metrics()))
    tasks = {task for task, _ in columns}
    conditions = [c for matrix in matrices for c in (*matrix.results, *matrix.refused) if c.task in tasks]
    rows = list(dict.fromkeys("/".join(condition.languages) for condition in conditions))
    cells = [
        [[matrix.cell(Condition.parse(f"{task}/{row}"), metric) for matrix in matrices] for task, metric in columns]
        for row in rows
    ]
    kinds: list[tuple[str, bool | None]] = [("mean", None)]
    if len({result.zero_shot for matrix in matrices for result in matrix.results.values()}) == 2:
        kinds += [("mean of trained", False), (f"mean of zero-shot{MARK}", True)]
    means = [
        (name, [[matrix.mean(*column, zero_shot=kind) for matrix in matrices] for column in columns])
        for name, kind in kinds
    ]
    return ScoreTable(columns, rows, cells, means)


def score_text(value: float) -> str:
    """Write a score; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:.2f}"
