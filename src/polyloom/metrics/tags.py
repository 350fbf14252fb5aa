"""Count the right tags of each sentence; compute the majority baseline."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from polyloom.metrics.score import Array, zip_sentences


def tag_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Count right tags and all tags of every sentence: ``[N, 2]``, for `ACCURACY`."""
    pairs = zip_sentences(gold, predicted, what="tags")
    counts = [(sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])) for pair in pairs]
    return np.array(counts, np.int64).reshape(-1, 2)


def majority_share(labels: Iterable[str]) -> float:
    """Compute the accuracy of the most frequent label, in percent; nan if there are no labels."""
    counts = Counter(labels)
    return 100 * counts.most_common(1)[0][1] / counts.total() if counts else math.nan
