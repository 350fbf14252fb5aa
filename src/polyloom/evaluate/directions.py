"""Group translation directions: from English, into English, neither; and by the amount of training data.

Zero-shot directions are groups of their own and are marked. Means are over directions, with equal weight. If languages
of a group have different tokenizers (see signatures), its mean BLEU can be compared between methods, not with other
groups.
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

Table = tuple[list[str], list[list[str]]]  # columns and rows

KINDS = ("En→X", "X→En", "X→Y")
LEVELS = ("high", "medium", "low")


@dataclass(frozen=True)
class Resources:
    """The amount of training data by direction.

    Attributes:
        pairs: Number of training pairs of every trained direction.
        low: Directions with fewer pairs have the level ``low``.
        high: Directions with at least this many pairs have the level ``high``; the others ``medium``.
    """

    pairs: Mapping[Condition, int]
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise PolyloomError(f"resources: low {self.low} and high {self.high}. Expected: 0 < low ≤ high.")

    def level(self, direction: Condition) -> str:
        """Return the level of a trained direction."""
        if direction not in self.pairs:
            raise PolyloomError(f"{direction}: was trained, but its number of training pairs is unknown.")
        pairs = self.pairs[direction]
        return "low" if pairs < self.low else "high" if pairs >= self.high else "medium"


def groups(matrix: Matrix, resources: Resources | None = None) -> dict[str, list[Condition]]:
    """Group the directions of a matrix; with resources also by level, for trained directions."""
    by_key: dict[tuple[int, bool, int], list[Condition]] = {}
    for direction in filter(is_translation, matrix.results):
        zero_shot = matrix.results[direction].zero_shot
        by_key.setdefault((_kind(direction), zero_shot, -1), []).append(direction)
        if resources and not zero_shot:
            level = LEVELS.index(resources.level(direction))
            by_key.setdefault((_kind(direction), False, level), []).append(direction)
    # The keys sort as the groups are shown: by kind, trained before zero-shot, each before its levels from high to low.
    named = {}
    for kind, zero_shot, level in sorted(by_key):
        name = KINDS[kind] + (MARK if zero_shot else "") + (f" {LEVELS[level]}" if level >= 0 else "")
        named[name] = by_key[kind, zero_shot, level]
    return named


def values(matrix: Matrix, directions: Sequence[Condition], metric: str) -> list[float]:
    """Return the scores of directions by a metric; directions without such a score are left out."""
    return [s.value for direction in directions for s in matrix.results[direction].scores if s.metric.name == metric]


def group_table(matrix: Matrix, resources: Resources | None = None) -> Table:
    """Make a table with one row per group: number of directions, and the mean of every metric."""
    metrics = _metrics(matrix)
    rows = []
    for name, directions in groups(matrix, resources).items():
        scores = (values(matrix, directions, metric) for metric in metrics)
        rows.append([name, str(len(directions)), *(f"{np.mean(group):.2f}" if group else "" for group in scores)])
    return ["group", "directions", *metrics], rows


def grid(matrix: Matrix, metric: str) -> tuple[list[str], Array]:
    """Return languages and scores ``[source, target]``, NaN for directions without a score."""
    require_metric(matrix, metric)
    languages = list(dict.fromkeys(language for direction in _directions(matrix) for language in direction.languages))
    scores = np.full((len(languages), len(languages)), np.nan)
    for direction in filter(is_translation, matrix.results):
        source, target = direction.source, direction.target or ""
        for score in values(matrix, [direction], metric):
            scores[languages.index(source), languages.index(target)] = score
    return languages, scores


def grid_table(matrix: Matrix, metric: str) -> Table:
    """Make a table of sources by targets; zero-shot scores are marked, refused directions have a dash."""
    languages, _ = grid(matrix, metric)
    texts = {(d.source, d.target): matrix.cell(d, metric).text(digits=1) for d in _directions(matrix)}
    rows = [[source, *(texts.get((source, target), "") for target in languages)] for source in languages]
    return [r"source \ target", *languages], rows


def require_metric(matrix: Matrix, metric: str) -> None:
    """Raise an error unless some translation is scored by a metric."""
    if metric not in (known := _metrics(matrix)):
        raise PolyloomError(f"directions: no translation is scored by {metric}. Known: {', '.join(known) or 'none'}.")


def is_translation(condition: Condition) -> bool:
    """Return whether a condition is a direction of translation."""
    return condition.target is not None and condition.task in TASKS and TASKS[condition.task].generates


def _directions(matrix: Matrix) -> list[Condition]:
    return [condition for condition in (*matrix.results, *matrix.refused) if is_translation(condition)]


def _metrics(matrix: Matrix) -> list[str]:
    names = (score.metric.name for d in filter(is_translation, matrix.results) for score in matrix.results[d].scores)
    return list(dict.fromkeys(names))


def _kind(direction: Condition) -> int:
    english = [primary(language) in ("en", "eng") for language in (direction.source, direction.target or "")]
    return 0 if english[0] else 1 if english[1] else 2
