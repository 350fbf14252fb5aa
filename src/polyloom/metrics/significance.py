"""Compute confidence intervals of scores and test differences between systems, by the bootstrap over sentences.

Koehn (2004), Statistical significance tests for machine translation evaluation; the p-value is that of a two-sided test
with the resampled differences shifted to the null hypothesis (Efron & Tibshirani 1993, ch. 16). sacrebleu shifts too,
but takes absolute differences first and counts their upper tail alone, so that its p is smaller than this one.
"""

from typing import NamedTuple

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.metrics.score import Array, Score, read_signature

_MAX_DRAWN = 1 << 20  # drawn sentences in memory at a time
_ROUNDING = 1e-9  # differences below this are equal up to rounding


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class BootstrapTest(NamedTuple):
    """The result of a paired bootstrap test.

    Attributes:
        difference: The first score minus the second.
        low: Lower bound of the difference's confidence interval.
        high: Upper bound.
        p_value: Two-sided p-value of the null hypothesis that the systems do not differ.
    """

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap_interval(score: Score, seed: int, *, samples: int = 1000, level: float = 0.95) -> Interval:
    """Compute the percentile interval of a score over resampled sentences."""
    values = score.metric.value(resampled_sums(score.statistics_NP, seed, samples=samples))
    return _percentiles(values, level)


def paired_bootstrap(a: Score, b: Score, *, seed: int, samples: int = 1000, level: float = 0.95) -> BootstrapTest:
    """Test the difference between two systems on the same sentences, resampling both in the same way.

    Raises:
        PolyloomError: The scores are of different metrics or different data.
    """
    require_same_data(a, b)
    sums = resampled_sums(np.hstack([a.statistics_NP, b.statistics_NP]), seed, samples=samples)
    ours, theirs = np.split(sums, 2, axis=-1)
    differences = a.metric.value(ours) - b.metric.value(theirs)
    difference = a.value - b.value
    smaller = np.abs(differences - difference) < abs(difference) - _ROUNDING  # false for NaN, which is no evidence
    p_value = (np.count_nonzero(~smaller) + 1) / (samples + 1)
    return BootstrapTest(difference, *_percentiles(differences, level), p_value)


def resampled_sums(statistics_NP: Array, seed: int, *, samples: int) -> Array:
    """Sum the statistics of sentences drawn with replacement, ``[samples, P]``; draws depend only on the seed and N."""
    num = len(statistics_NP)
    if num < 2 or samples < 1:
        raise PolyloomError(f"bootstrap: {num} sentences and {samples} samples. Needed: at least 2 and 1.")
    rng = np.random.default_rng(seed)
    statistics_NP = statistics_NP.astype(np.float64)  # exact for counts, with a fast product
    sums = []
    chunk = max(1, _MAX_DRAWN // num)
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        drawn = rng.integers(num, size=(size, num)) + num * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * num).reshape(size, num)
        sums.append(times @ statistics_NP)
    return np.concatenate(sums)


def _percentiles(values: Array, level: float) -> Interval:
    if not 0 < level < 1:
        raise PolyloomError(f"bootstrap: level {level} is not between 0 and 1, such as 0.95.")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def require_same_data(a: Score, b: Score) -> None:
    """Raise an error unless two scores are of the same metric and the same sentences."""
    ours, theirs = ({"sentences": str(s.count)} | read_signature(s.signature) for s in (a, b))
    ours["metric"], theirs["metric"] = a.metric.name, b.metric.name
    for field in ("metric", "sha256", "sentences", "checkpoint"):  # the last is for COMET
        our_value, their_value = ours.get(field), theirs.get(field)
        if our_value != their_value:
            raise PolyloomError(
                f"comparison: {field} is {our_value} for one score and {their_value} for the other. "
                "Only scores of one metric on the same data can be compared."
            )
    if not np.array_equal(a.statistics_NP[:, -1], b.statistics_NP[:, -1]):
        raise PolyloomError(
            f"comparison: the scores have different numbers of {a.metric.statistics[-1]} in some sentences. "
            "Are the sentences in the same order, and segmented in the same way?"
        )
