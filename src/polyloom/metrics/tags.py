"""Accuracy of tags: how many words of each sentence have the right one, and the majority baseline."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from polyloom.metrics.score import Array, aligned


def tag_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Parts of `ACCURACY`, ``[N, 2]``: right tags and all tags of every sentence."""
    pairs = aligned(gold, predicted, what="tags")
    counts = [(sum(a == b for a, b in zip(one, other, strict=True)), len(one)) for one, other in pairs]
    return np.array(counts, np.int64).reshape(-1, 2)


def majority_share(labels: Iterable[str]) -> float:
    """Compute the accuracy of the most frequent label, in percent; nan if there are no labels."""
    counts = Counter(labels)
    return 100 * counts.most_common(1)[0][1] / counts.total() if counts else math.nan
