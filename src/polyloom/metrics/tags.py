"""Count the right tags of each sentence."""

from collections.abc import Sequence

import numpy as np

from polyloom.metrics.score import Array, zip_sentences


def tag_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Count right tags and all tags of every sentence: ``[N, 2]``, for `ACCURACY`."""
    pairs = zip_sentences(gold, predicted, what="tags")
    counts = [(sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])) for pair in pairs]
    return np.array(counts, np.int64).reshape(-1, 2)
