"""Directions of translation in groups: from English, into English, neither; with much, some or little to learn from.

A direction that was not trained is of a group of its own, marked as zero-shot. Means are over directions, each counting
alike. Where languages of a group have different tokenizers, as signatures say, its BLEU compares methods, not groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.metrics.bleu import primary
from polyloom.metrics.score import Array
from polyloom.tasks import TASKS

Table = tuple[list[str], list[list[str]]]  # columns and rows, as `cli.tables` writes them

KINDS = ("En→X", "X→En", "X→Y")
LEVELS = ("high", "medium", "low")


@dataclass(frozen=True)
class Resources:
    """How much there is to learn from.

    Attributes:
        pairs: Training pairs of every direction that was trained.
        low: Directions with fewer pairs are of the level ``low``.
        high: Those with as many or more are of the level ``high``; others are ``medium``.
    """

    pairs: Mapping[Condition, int]
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise PolyloomError(f"resources: low {self.low} and high {self.high}. Needed: 0 < low ≤ high.")

    def level(self, direction: Condition) -> str:
        """The level of a direction that was trained."""
        if direction not in self.pairs:
            raise PolyloomError(f"{direction}: trained, but on how many pairs is not said.")
        pairs = self.pairs[direction]
        return "low" if pairs < self.low else "high" if pairs >= self.high else "medium"


def groups(matrix: Matrix, resources: Resources | None = None) -> dict[str, list[Condition]]:
    """The directions of every group that has some; with resources also of every level, as far as they were trained."""
    found: dict[tuple[int, bool, int], list[Condition]] = {}
    for direction in filter(is_translation, matrix.results):
        zero_shot = matrix.results[direction].zero_shot
        found.setdefault((_kind(direction), zero_shot, -1), []).append(direction)
        if resources and not zero_shot:
            level = LEVELS.index(resources.level(direction))
            found.setdefault((_kind(direction), False, level), []).append(direction)
    return {_name(*key): found[key] for key in sorted(found)}


def values(matrix: Matrix, directions: Sequence[Condition], metric: str) -> list[float]:
    """The score of each direction that was scored by the metric."""
    return [s.value for direction in directions for s in matrix.results[direction].scores if s.metric.name == metric]


def group_table(matrix: Matrix, resources: Resources | None = None) -> Table:
    """One row per group: how many directions, and the mean of every metric over them."""
    metrics = _metrics(matrix)
    rows = []
    for name, directions in groups(matrix, resources).items():
        scores = (values(matrix, directions, metric) for metric in metrics)
        rows.append([name, str(len(directions)), *(f"{np.mean(some):.2f}" if some else "" for some in scores)])
    return ["group", "directions", *metrics], rows


def grid(matrix: Matrix, metric: str) -> tuple[list[str], Array]:
    """Languages and scores ``[source, target]``, nan where there is none."""
    if metric not in (known := _metrics(matrix)):
        raise PolyloomError(f"directions: no translation is scored by {metric}. Known: {', '.join(known) or 'none'}.")
    found = list(filter(is_translation, (*matrix.results, *matrix.refused)))
    languages = list(dict.fromkeys(language for direction in found for language in direction.languages))
    scores = np.full((len(languages), len(languages)), np.nan)
    for direction in filter(is_translation, matrix.results):
        source, target = direction.source, direction.target or ""
        for score in values(matrix, [direction], metric):
            scores[languages.index(source), languages.index(target)] = score
    return languages, scores


def grid_table(matrix: Matrix, metric: str) -> Table:
    """One row per source, one column per target; zero-shot directions are marked, refused ones are a dash."""
    languages, scores = grid(matrix, metric)
    marks = {(d.source, d.target): MARK for d in filter(is_translation, matrix.results) if matrix.results[d].zero_shot}
    refused = {(d.source, d.target) for d in filter(is_translation, matrix.refused)}

    def result(source: str, target: str, score: float) -> str:
        if np.isnan(score):
            return "–" if (source, target) in refused else ""
        return f"{score:.1f}{marks.get((source, target), '')}"

    rows = [
        [source, *(result(source, target, score) for target, score in zip(languages, row, strict=True))]
        for source, row in zip(languages, scores.tolist(), strict=True)
    ]
    return [r"source \ target", *languages], rows


def is_translation(condition: Condition) -> bool:
    """Tell whether a condition is a direction of translation."""
    return condition.target is not None and condition.task in TASKS and TASKS[condition.task].generates


def _metrics(matrix: Matrix) -> list[str]:
    found = (score.metric.name for d in filter(is_translation, matrix.results) for score in matrix.results[d].scores)
    return list(dict.fromkeys(found))


def _kind(direction: Condition) -> int:
    english = [primary(language) in ("en", "eng") for language in (direction.source, direction.target or "")]
    return 0 if english[0] else 1 if english[1] else 2


def _name(kind: int, zero_shot: bool, level: int) -> str:
    return KINDS[kind] + (MARK if zero_shot else "") + (f" {LEVELS[level]}" if level >= 0 else "")
