"""How certain a score is, and whether one system is better than another: the bootstrap over sentences.

Koehn (2004), Statistical significance tests for machine translation evaluation; the p-value is that of a two-sided test
with the resampled differences shifted to the null hypothesis (Efron & Tibshirani 1993, ch. 16). sacrebleu shifts too,
but takes absolute differences first and counts their upper tail alone, so that its p is smaller than this one.
"""

from typing import NamedTuple

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.metrics.score import Array, Score, read_signature

_CELLS = 1 << 20  # how many drawn sentences are held in memory at a time
_ROUNDING = 1e-9  # of differences that are equal but for the order of operations


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Comparison(NamedTuple):
    """The first score minus the second, its confidence interval, and how likely chance alone makes it so big."""

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap_interval(score: Score, seed: int, *, samples: int = 1000, level: float = 0.95) -> Interval:
    """The percentile interval of a score over resampled sentences."""
    values = score.metric.value(resampled_sums(score.statistics_NP, seed, samples=samples))
    return _percentiles(values, level)


def paired_bootstrap(a: Score, b: Score, *, seed: int, samples: int = 1000, level: float = 0.95) -> Comparison:
    """Compare two systems on the same sentences, resampling both alike.

    Raises:
        PolyloomError: The scores are of different metrics or different data.
    """
    _same_data(a, b)
    sums = resampled_sums(np.hstack([a.statistics_NP, b.statistics_NP]), seed, samples=samples)
    ours, theirs = np.split(sums, 2, axis=-1)
    differences = a.metric.value(ours) - b.metric.value(theirs)
    difference = a.value - b.value
    smaller = np.abs(differences - difference) < abs(difference) - _ROUNDING  # false for nan, which proves nothing
    p_value = (np.count_nonzero(~smaller) + 1) / (samples + 1)
    return Comparison(difference, *_percentiles(differences, level), p_value)


def resampled_sums(statistics_NP: Array, seed: int, *, samples: int) -> Array:
    """Sums of the parts over sentences drawn with replacement, ``[samples, P]``; seed and N alone decide the draws."""
    num = len(statistics_NP)
    if num < 2 or samples < 1:
        raise PolyloomError(f"bootstrap: {num} sentences and {samples} samples. Needed: at least 2 and 1.")
    rng = np.random.default_rng(seed)
    statistics_NP = statistics_NP.astype(np.float64)  # integers stay exact, and the product is fast
    sums = []
    chunk = max(1, _CELLS // num)
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


def _same_data(a: Score, b: Score) -> None:
    ours, theirs = ({"sentences": str(s.count)} | read_signature(s.signature) for s in (a, b))
    ours["metric"], theirs["metric"] = a.metric.name, b.metric.name
    for field in ("metric", "sha256", "sentences", "checkpoint"):  # the last is of learnt metrics
        one, other = ours.get(field), theirs.get(field)
        if one != other:
            raise PolyloomError(
                f"comparison: {field} is {one} for one score and {other} for the other. "
                "Only scores of one metric on the same data can be compared."
            )
    if not np.array_equal(a.statistics_NP[:, -1], b.statistics_NP[:, -1]):
        raise PolyloomError(
            f"comparison: the scores do not agree on the {a.metric.statistics[-1]} part of every sentence. "
            "Are the sentences in the same order, and cut in the same way?"
        )
