"""Answers are compared as the official evaluation of SQuAD 1.1 compares them."""

import random

import numpy as np
import pytest

from polyloom.errors import PolyloomError
from polyloom.metrics.answers import answer_statistics, normalized_answer
from polyloom.metrics.score import ANSWER_EXACT, ANSWER_F1, Score
from tests.metrics.peers import ask, needs_peers

WORDS = [
    "the",
    "The",
    "a",
    "an",
    "cat",
    "Cat,",
    "cats",
    "sat.",
    "1,000",
    "U.S.",
    "Ähre",
    "l'an",
    "東京",
    "",
    "  ",
    "—",
    "“x”",
]


def texts(rng: random.Random) -> str:
    return rng.choice([" ", "  ", "-", "\n"]).join(rng.choices(WORDS, k=rng.randint(0, 5)))


@pytest.mark.parity
@needs_peers
def test_every_pair_is_judged_as_transformers_judges_it(tmp_path):
    """Its code is that of SQuAD 2.0, which differs where nothing is left of an answer: 1.1 gives no overlap there."""
    rng = random.Random(0)
    cases = [(texts(rng), texts(rng)) for _ in range(5000)]
    cases += [(gold, gold) for gold, _ in cases[:500]]
    judged = ask(tmp_path, "answers", cases)
    statistics = answer_statistics([[gold] for gold, _ in cases], [predicted for _, predicted in cases])
    for (gold, predicted), (exact, f1, plain), ours in zip(cases, judged, statistics.tolist(), strict=True):
        assert normalized_answer(gold) == plain
        empty = not (normalized_answer(gold) and normalized_answer(predicted))
        assert ours == [exact, 0.0 if empty else f1, 1.0], (gold, predicted)
    assert ((statistics[:, 1] > 0) & (statistics[:, 1] < 1)).sum() > 300, "the comparison would see a difference"


def test_the_best_of_several_answers_counts_and_scores_are_means_over_questions():
    gold = [["Denver Broncos", "The Broncos"], ["in 1066", "1066"], ["the"]]
    statistics = answer_statistics(gold, ["broncos!", "the year 1066", "a"])
    f1 = 2 * 0.5 * 1 / 1.5
    assert np.allclose(statistics, np.array([[1, 1, 1], [0, f1, 1], [1, 0, 1]], np.float64))
    assert Score(ANSWER_EXACT, statistics, "").value == pytest.approx(200 / 3)
    assert Score(ANSWER_F1, statistics, "").value == pytest.approx(100 * (1 + f1) / 3)
    assert (
        Score.from_dict(Score(ANSWER_F1, statistics, "metric:x").to_dict()).value
        == Score(ANSWER_F1, statistics, "").value
    )


def test_questions_without_gold_answers_cannot_be_scored():
    with pytest.raises(PolyloomError, match="1 questions with gold answers, 2 predictions"):
        answer_statistics([["a"], []], ["a", "b"])
