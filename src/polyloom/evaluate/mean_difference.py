"""The mean difference between two runs over several conditions, with an interval."""

from collections.abc import Sequence

import numpy as np

from polyloom.metrics.score import Score
from polyloom.metrics.significance import BootstrapTest, resampled_sums

SAMPLES = 2000


def mean_difference(pairs: Sequence[tuple[Score, Score]], *, seed: int = 0, samples: int = SAMPLES) -> BootstrapTest:
    """Compare the means of two systems by a paired bootstrap over the sentences of every condition.

    Both systems are resampled alike. Conditions of the same size are resampled alike as well, so that test sets which
    are translations of one another are not counted as independent.

    Args:
        pairs: For each condition the scores of both systems, by one metric on the same sentences.
        seed: Of the resampling.
        samples: How often sentences are resampled.

    Returns:
        The mean of the first system minus the mean of the second, with its 95 % interval and two-sided p-value.
    """
    metric = pairs[0][0].metric
    resampled = np.zeros(samples)
    for a, b in pairs:
        sums = resampled_sums(np.hstack([a.statistics_NP, b.statistics_NP]), seed, samples=samples)
        ours, theirs = np.split(sums, 2, axis=-1)
        resampled += (metric.value(ours) - metric.value(theirs)) / len(pairs)
    difference = float(np.mean([a.value - b.value for a, b in pairs]))
    smaller = np.abs(resampled - difference) < abs(difference) - 1e-9  # false for nan, which shows nothing
    low, high = np.quantile(resampled, [0.025, 0.975])
    p_value = (np.count_nonzero(~smaller) + 1) / (samples + 1)
    return BootstrapTest(difference, float(low), float(high), p_value)
