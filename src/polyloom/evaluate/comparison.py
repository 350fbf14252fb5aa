"""Two runs cell by cell: differences, their intervals, and whether they can be more than chance."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.metrics.score import Score, read_signature
from polyloom.metrics.significance import paired_bootstrap

SAMPLES = 10_000  # so that p can become small enough for the correction over hundreds of cells
LEVEL = 0.05
_SLICE = re.compile(r"\[\d*:\d*\](?=\+|$)")


@dataclass(frozen=True)
class Difference:
    """One score of two runs on the same data.

    Attributes:
        condition: What was scored.
        metric: By which metric.
        a: Score of the first run.
        b: Score of the second.
        interval: Of a − b, at 95 %.
        p_value: How likely chance alone makes the difference so big, for this cell by itself.
        corrected: The same after Holm, given how many cells were looked at.
        higher_is_better: Of the metric.
    """

    condition: Condition
    metric: str
    a: float
    b: float
    interval: tuple[float, float]
    p_value: float
    corrected: float
    higher_is_better: bool

    @property
    def verdict(self) -> str:
        """What may be said of the first run."""
        if self.corrected >= LEVEL:
            return "no difference shown"
        return "better" if (self.a > self.b) == self.higher_is_better else "worse"


@dataclass(frozen=True)
class Comparison:
    """All that two runs have in common, and conditions that only one of them was scored on."""

    differences: tuple[Difference, ...]
    only_a: tuple[Condition, ...]
    only_b: tuple[Condition, ...]

    def means(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Mean scores of both runs over the cells of each task and metric."""
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for one in self.differences:
            found.setdefault((one.condition.task, one.metric), []).append((one.a, one.b))
        return {
            key: (float(np.mean([a for a, _ in values])), float(np.mean([b for _, b in values])))
            for key, values in found.items()
        }


def compare(a: Matrix, b: Matrix, *, seed: int = 0) -> Comparison:
    """Compare every score that both have.

    Raises:
        PolyloomError: They have no cell in common, or one of other data.
    """
    both = [condition for condition in a.results if condition in b.results]
    if not both:
        raise PolyloomError("compare: the two runs have no task and language in common.")
    pairs = []
    for condition in both:
        theirs = {score.metric.name: score for score in b.results[condition].scores}
        pairs += [(condition, s, theirs[s.metric.name]) for s in a.results[condition].scores if s.metric.name in theirs]
    found = []
    for condition, ours, other in pairs:
        try:
            _check_slices(ours, other)
            found.append(paired_bootstrap(ours, other, seed=seed, samples=SAMPLES))
        except PolyloomError as error:
            raise PolyloomError(f"{condition}: {error}") from error
    corrected = holm([one.p_value for one in found])
    differences = tuple(
        Difference(
            condition, ours.metric.name, ours.value, other.value, (one.low, one.high), one.p_value, p,
            ours.metric.higher_is_better,
        )
        for (condition, ours, other), one, p in zip(pairs, found, corrected, strict=True)
    )  # fmt: skip
    only_a, only_b = (tuple(c for c in one.results if c not in two.results) for one, two in ((a, b), (b, a)))
    return Comparison(differences, only_a, only_b)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number (Holm 1979): the error that any of them is too small stays at the level."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def _check_slices(a: Score, b: Score) -> None:
    """Slices of one file have the same hash, and may have the same number of sentences."""
    slices = [_SLICE.findall(read_signature(score.signature).get("corpus", "")) for score in (a, b)]
    if slices[0] != slices[1]:
        ours, theirs = ("+".join(found) or "all" for found in slices)
        raise PolyloomError(
            f"comparison: one score is of {ours} of the corpus, the other of {theirs}. "
            "Only scores on the same data can be compared."
        )
