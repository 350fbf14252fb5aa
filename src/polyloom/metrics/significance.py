"""Compute confidence intervals of scores and test differences between systems, by the bootstrap over sentences.

Koehn (2004), Statistical significance tests for machine translation evaluation; the p-value is that of a two-sided test
with the resampled differences shifted to the null hypothesis (Efron & Tibshirani 1993, ch. 16). sacrebleu shifts too,
but takes absolute differences first and counts their upper tail alone, so that its p is smaller than this one.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.metrics.score import Array, Score, read_signature

LEVEL = 0.05  # differences with a smaller p-value are significant
_MAX_DRAWN = 1 << 20  # drawn sentences in memory at a time
_ROUNDING = 1e-9  # differences below this are equal up to rounding
_SLICE = re.compile(r"(?:\[random:[\d:]+\]|\[\d*:\d*\])+(?=\+|$)")


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
    return _percentiles(score.metric.value(resampled_sums(score.statistics_NP, seed, samples=samples)), level)


def paired_bootstrap(a: Score, b: Score, *, seed: int, samples: int = 1000, level: float = 0.95) -> BootstrapTest:
    """Test the difference between two systems on the same sentences, resampling both in the same way.

    Raises:
        PolyloomError: The scores are of different metrics or different data.
    """
    require_same_data(a, b)
    return mean_difference([(a, b)], seed=seed, samples=samples, level=level)


def mean_difference(
    pairs: Sequence[tuple[Score, Score]], *, seed: int = 0, samples: int = 2000, level: float = 0.95
) -> BootstrapTest:
    """Compare the means of two systems over several conditions, by a paired bootstrap over the sentences of each.

    Both systems are resampled alike. Conditions of the same size are resampled alike as well, so that test sets which
    are translations of one another are not counted as independent.

    Args:
        pairs: For each condition the scores of both systems, by one metric on the same sentences.
        seed: Seed of the resampling.
        samples: How often sentences are resampled.
        level: Share of the resampled differences that is inside the interval.
    """
    metric = pairs[0][0].metric
    resampled = np.zeros(samples)
    for a, b in pairs:
        sums = resampled_sums(np.hstack([a.statistics_NP, b.statistics_NP]), seed, samples=samples)
        ours, theirs = np.split(sums, 2, axis=-1)
        resampled += (metric.value(ours) - metric.value(theirs)) / len(pairs)
    difference = float(np.mean([a.value - b.value for a, b in pairs]))
    # Under the null hypothesis, resampled differences are centred at 0 instead of the difference that was measured. The
    # p-value is the share of them that are as extreme as it, which itself counts as one (hence both + 1, and never 0).
    # Comparing by "not smaller" makes NaN, of resamples without any unit, count as extreme: it is no evidence.
    smaller = np.abs(resampled - difference) < abs(difference) - _ROUNDING
    p_value = (np.count_nonzero(~smaller) + 1) / (samples + 1)
    return BootstrapTest(difference, *_percentiles(resampled, level), p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple testing (Holm 1979), which controls the family-wise error rate."""
    corrected, largest = [1.0] * len(p_values), 0.0
    # The smallest of m p-values is multiplied by m, the next one by m − 1, and so on. None may become smaller than one
    # before it, or a larger p-value could be significant where a smaller one is not.
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def resampled_sums(statistics_NP: Array, seed: int, *, samples: int) -> Array:
    """Sum the statistics of sentences drawn with replacement, ``[samples, P]``; draws depend only on the seed and N."""
    num = len(statistics_NP)
    if num < 2 or samples < 1:
        raise PolyloomError(f"bootstrap: {num} sentences and {samples} samples. Needed: at least 2 and 1.")
    rng = np.random.default_rng(seed)
    statistics_NP = statistics_NP.astype(np.float64)  # exact for counts, with a fast product
    sums = []
    # A sample is how often each sentence is drawn, times the statistics: one product for many samples.
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
    # The hash is of the whole file, so two slices of it have the same, and may be equally long.
    signatures = [read_signature(score.signature) for score in (a, b)]
    slices = [_SLICE.findall(signature.get("corpus", "")) for signature in signatures]
    if slices[0] != slices[1]:
        ours, theirs = ("+".join(names) or "all" for names in slices)
        raise PolyloomError(
            f"comparison: one score is of {ours} of the corpus, the other of {theirs}. "
            "Only scores on the same data can be compared."
        )
    fields = [
        {"sentences": str(score.count)} | signature | {"metric": score.metric.name}
        for score, signature in zip((a, b), signatures, strict=True)
    ]
    for name in ("metric", "sha256", "sentences", "checkpoint"):  # the last is for COMET
        our_value, their_value = (of_score.get(name) for of_score in fields)
        if our_value != their_value:
            raise PolyloomError(
                f"comparison: {name} is {our_value} for one score and {their_value} for the other. "
                "Only scores of one metric on the same data can be compared."
            )
    if not np.array_equal(a.statistics_NP[:, -1], b.statistics_NP[:, -1]):
        raise PolyloomError(
            f"comparison: the scores have different numbers of {a.metric.statistics[-1]} in some sentences. "
            "Are the sentences in the same order, and segmented in the same way?"
        )
