"""Compare two runs by condition: differences of scores, their confidence intervals and significance."""

from dataclasses import dataclass

import numpy as np

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.metrics.score import Score
from polyloom.metrics.significance import LEVEL, holm, paired_bootstrap

SAMPLES = 10_000  # p-values must be small enough for the correction over hundreds of conditions


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
        """Whether the first run is ``better``, ``worse``, or ``not significant``."""
        if self.corrected >= LEVEL:
            return "not significant"
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
    # Every metric of every condition is one test, and Holm's correction is over all of them.
    pairs: list[tuple[Condition, Score, Score]] = []
    for condition in shared:
        others = {score.metric.name: score for score in b.results[condition].scores}
        common = (score for score in a.results[condition].scores if score.metric.name in others)
        pairs += [(condition, score, others[score.metric.name]) for score in common]

    tests = []
    for condition, ours, theirs in pairs:
        try:
            tests.append(paired_bootstrap(ours, theirs, seed=seed, samples=SAMPLES))
        except PolyloomError as error:
            raise PolyloomError(f"{condition}: {error}") from error
    corrected = holm([test.p_value for test in tests])
    differences = tuple(
        Difference(
            condition, ours.metric.name, ours.value, theirs.value, (test.low, test.high), test.p_value, p_value,
            ours.metric.higher_is_better,
        )
        for (condition, ours, theirs), test, p_value in zip(pairs, tests, corrected, strict=True)
    )  # fmt: skip
    only_a = tuple(condition for condition in a.results if condition not in b.results)
    only_b = tuple(condition for condition in b.results if condition not in a.results)
    return Comparison(differences, only_a, only_b)
