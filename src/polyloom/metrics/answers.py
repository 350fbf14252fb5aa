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
    counts = [
        (max(_exact(text, answer) for answer in answers), max(_f1(text, answer) for answer in answers), 1)
        for answers, text in zip(gold, predicted, strict=True)
    ]
    return np.array(counts, np.float64).reshape(-1, 3)


def normalized_answer(text: str) -> str:
    """Remove what does not count from an answer, in the order of the official script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _exact(predicted: str, gold: str) -> bool:
    return normalized_answer(predicted) == normalized_answer(gold)


def _f1(predicted: str, gold: str) -> float:
    predicted_words, gold_words = normalized_answer(predicted).split(), normalized_answer(gold).split()
    shared = (Counter(predicted_words) & Counter(gold_words)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted_words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)
