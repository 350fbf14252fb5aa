"""Count right answers by the rules of the official evaluation of SQuAD 1.1.

Case, punctuation marks of ASCII, the English articles and white space do not count, in any language. A prediction is
compared with each gold answer, and the best value counts.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.metrics.score import Array

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def answer_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> Array:
    """Count exact matches, the F1 of words, and questions: ``[N, 3]``, for `ANSWER_EXACT` and `ANSWER_F1`.

    Args:
        gold: The answers to each question.
        predicted: The predicted answer to each.
    """
    if len(gold) != len(predicted) or not all(gold):
        raise PolyloomError(
            f"answers: {sum(map(bool, gold))} questions with gold answers, {len(predicted)} predictions."
        )
    # The best match and the best F1 may be with different gold answers, as in the official script.
    counts = []
    for answers, text in zip(gold, predicted, strict=True):
        prediction, normalized = normalized_answer(text), [normalized_answer(answer) for answer in answers]
        overlap = max(_f1(prediction.split(), answer.split()) for answer in normalized)
        counts.append((float(prediction in normalized), overlap, 1.0))
    return np.array(counts, np.float64).reshape(-1, 3)


def normalized_answer(text: str) -> str:
    """Remove what does not count from an answer, in the order of the official script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    shared = (Counter(predicted) & Counter(gold)).total()  # a word counts as often as it is in both
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(gold)
    return 2 * precision * recall / (precision + recall)
