"""Compare two runs by condition: differences of scores, their confidence intervals and significance."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.metrics import significance
from polyloom.metrics.score import Score, read_signature

SAMPLES = 10_000  # p-values must be small enough for the correction over hundreds of conditions
LEVEL = 0.05
_SLICE = re.compile(r"(?:\[random:[\d:]+\]|\[\d*:\d*\])+(?=\+|$)")


@dataclass(frozen=True)
class Difference:
    """The difference between the scores of two runs on the same data.

    Attributes:
        condition: The condition.
        metric: Name of the metric.
        a: Score of the first run.
        b: Score of the second run.
        interval: 95 % confidence interval of a − b.
        p_value: Two-sided p-value of the paired bootstrap, for this condition alone.
        corrected: The p-value after Holm's correction for the number of compared scores.
        higher_is_better: Whether a higher score is better.
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
        """Whether the first run is ``better``, ``worse``, or ``no difference shown``."""
        if self.corrected >= LEVEL:
            return "no difference shown"
        return "better" if (self.a > self.b) == self.higher_is_better else "worse"


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs.

    Attributes:
        differences: Differences of all scores that both runs have.
        only_a: Conditions that only the first run was scored on.
        only_b: Conditions that only the second run was scored on.
    """

    differences: tuple[Difference, ...]
    only_a: tuple[Condition, ...]
    only_b: tuple[Condition, ...]

    def means(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Return the mean scores of both runs by task and metric."""
        by_metric: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for difference in self.differences:
            key = difference.condition.task, difference.metric
            by_metric.setdefault(key, []).append((difference.a, difference.b))
        return {
            key: (float(np.mean([a for a, _ in values])), float(np.mean([b for _, b in values])))
            for key, values in by_metric.items()
        }


def compare(a: Matrix, b: Matrix, *, seed: int = 0) -> Comparison:
    """Compare every score that both runs have.

    Raises:
        PolyloomError: They have no condition in common, or were scored on different data.
    """
    shared = [condition for condition in a.results if condition in b.results]
    if not shared:
        raise PolyloomError("compare: the two runs have no task and language in common.")
    pairs = []
    for condition in shared:
        theirs = {score.metric.name: score for score in b.results[condition].scores}
        pairs += [(condition, s, theirs[s.metric.name]) for s in a.results[condition].scores if s.metric.name in theirs]
    tests = []
    for condition, ours, other in pairs:
        try:
            require_same_data(ours, other)
            tests.append(significance.paired_bootstrap(ours, other, seed=seed, samples=SAMPLES))
        except PolyloomError as error:
            raise PolyloomError(f"{condition}: {error}") from error
    corrected = holm([test.p_value for test in tests])
    differences = tuple(
        Difference(
            condition, ours.metric.name, ours.value, other.value, (test.low, test.high), test.p_value, p,
            ours.metric.higher_is_better,
        )
        for (condition, ours, other), test, p in zip(pairs, tests, corrected, strict=True)
    )  # fmt: skip
    only_a, only_b = (tuple(c for c in x.results if c not in y.results) for x, y in ((a, b), (b, a)))
    return Comparison(differences, only_a, only_b)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple testing (Holm 1979), which controls the family-wise error rate."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def require_same_data(a: Score, b: Score) -> None:
    """Raise an error unless two scores are of the same metric and data.

    Slices of a file have the same hash and may be equally long, so they are compared too.
    """
    slices = [_SLICE.findall(read_signature(score.signature).get("corpus", "")) for score in (a, b)]
    if slices[0] != slices[1]:
        ours, theirs = ("+".join(names) or "all" for names in slices)
        raise PolyloomError(
            f"comparison: one score is of {ours} of the corpus, the other of {theirs}. "
            "Only scores on the same data can be compared."
        )
    significance.require_same_data(a, b)
