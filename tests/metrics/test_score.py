"""Scores follow from sums, survive JSON bit for bit, and are never made of things that do not belong together."""

import json
import math

import numpy as np
import pytest

from polyloom.data.records import Tree
from polyloom.errors import PolyloomError
from polyloom.metrics.attachment import attachment_statistics, wrong_words
from polyloom.metrics.score import (
    ACCURACY,
    ANSWER_EXACT,
    ANSWER_F1,
    BITS_PER_BYTE,
    COMET,
    F1,
    LAS,
    METRICS,
    PERPLEXITY,
    UAS,
    Array,
    Score,
    read_signature,
    selection_score,
    signature,
)
from polyloom.metrics.spans import span_statistics
from polyloom.metrics.tags import majority_share, tag_statistics

HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("metric", "statistics", "value"),
    [
        (ACCURACY, [[1, 2], [2, 2]], 75.0),
        (F1, [[1, 2, 1], [1, 1, 4]], 50.0),
        (UAS, [[3, 2, 4]], 75.0),
        (LAS, [[3, 2, 4]], 50.0),
        (PERPLEXITY, [[math.log(8), 1], [math.log(2), 1]], 4.0),
        (ACCURACY, [[0, 0]], 0.0),  # as the CoNLL 2018 evaluation
        (LAS, [[0, 0, 0]], 0.0),
        (F1, [[0, 0, 0]], 0.0),  # as seqeval
        (F1, [[0, 3, 0]], 0.0),
        (PERPLEXITY, [[0.0, 0.0]], math.nan),
        (BITS_PER_BYTE, [[3 * math.log(2), 5, 1], [math.log(2), 5, 1]], 2.0),  # of bytes, not of tokens
        (BITS_PER_BYTE, [[0.0, 0.0, 0.0]], math.nan),
        (COMET, [[3.0, 1.0, 2], [0.0, 0.0, 2]], 50.0),
        (COMET, [[0.0, 1.0, 1]], -100.0),
        (COMET, [[0.0, 0.0, 0]], 0.0),
        (ANSWER_EXACT, [[1.0, 1.0, 1], [0.0, 0.5, 1]], 50.0),
        (ANSWER_F1, [[1.0, 1.0, 1], [0.0, 0.5, 1]], 75.0),
    ],
)
def test_values_of_known_parts(metric, statistics, value):
    assert Score(metric, np.array(statistics), "").value == pytest.approx(value, rel=1e-15, nan_ok=True)


def test_values_of_many_sums_at_once_are_those_of_each():
    sums = np.random.default_rng(0).integers(0, 3, (4, 50, 3))
    for metric in (F1, UAS, LAS):
        each = [[Score(metric, row[None], "").value for row in rows] for rows in sums]
        assert metric.value(sums).tolist() == each


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_scores_survive_json_bit_for_bit(metric):
    rng = np.random.default_rng(0)
    size = (1000, len(metric.statistics))
    statistics: Array = rng.exponential(1e-3, size) if metric is PERPLEXITY else rng.integers(0, 2**50, size)
    score = Score(metric, statistics, signature(metric, statistics, condition="pos/tr", corpus="c", sha256=HASH))
    again = Score.from_dict(json.loads(json.dumps(score.to_dict())))
    assert again.statistics_NP.dtype == score.statistics_NP.dtype == (np.float64 if metric is PERPLEXITY else np.int64)
    assert np.array_equal(again.statistics_NP, statistics)
    assert (again.metric, again.signature, again.value, again.count) == (metric, score.signature, score.value, 1000)


def test_json_shows_the_value_and_names_the_statistics():
    assert Score(ACCURACY, np.array([[1, 2], [2, 2]]), "s").to_dict() == {
        "metric": "accuracy", "value": 75.0, "signature": "s", "statistics": {"right": [1, 2], "total": [2, 2]},
    }  # fmt: skip


def test_checkpoints_are_selected_by_the_mean_in_which_a_lower_perplexity_is_better():
    half, whole = (Score(ACCURACY, np.array([[right, 2]]), "") for right in (1, 2))
    assert selection_score([half, whole]) == 75.0
    nats = [Score(PERPLEXITY, np.array([[loss, 2.0]]), "") for loss in (1.0, 3.0)]
    assert selection_score(nats) == pytest.approx(-1.0)
    assert selection_score([half, nats[1]]) == pytest.approx((50 - 1.5) / 2)


def test_stored_scores_of_unknown_metrics_or_parts_are_refused():
    stored = Score(ACCURACY, np.array([[1, 2]]), "").to_dict()
    with pytest.raises(PolyloomError, match=r"unknown metric 'acuracy'. Did you mean 'accuracy'\?"):
        Score.from_dict(stored | {"metric": "acuracy"})
    with pytest.raises(PolyloomError, match=r"las: unexpected statistics right, total\. Known: uas, las, words"):
        Score.from_dict(stored | {"metric": "las"})


@pytest.mark.parametrize("statistics", [np.zeros((0, 2), np.int64), np.zeros(2, np.int64), np.zeros((3, 3), np.int64)])
def test_parts_of_another_shape_or_of_no_sentence_are_refused(statistics):
    with pytest.raises(PolyloomError, match="expected one row per sentence, with right, total"):
        Score(ACCURACY, statistics, "")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_parts_that_are_no_counts_are_refused(bad):
    with pytest.raises(PolyloomError, match="negative, NaN or infinite"):
        Score(PERPLEXITY, np.array([[1.0, 1.0], [bad, 1.0]]), "")


def test_scores_do_not_change_with_the_array_they_were_made_from():
    statistics = np.array([[1, 2]])
    score = Score(ACCURACY, statistics, "")
    statistics[:] = 0
    assert score.value == 50.0
    with pytest.raises(ValueError, match="read-only"):
        score.statistics_NP[:] = 0


def test_signature_says_what_was_measured_on_what():
    statistics = np.array([[1, 2, 3], [4, 5, 6]])
    text = signature(LAS, statistics, condition="dep/tr", corpus="ud:tr_imst/te|st", sha256=HASH)
    assert text.startswith(
        "metric:las|condition:dep/tr|corpus:ud:tr_imst/te%7Cst|sha256:0123456789ab|sentences:2|units:9|"
    )
    fields = read_signature(text)
    assert fields["corpus"] == "ud:tr_imst/te%7Cst"
    assert [*fields] == ["metric", "condition", "corpus", "sha256", "sentences", "units", "polyloom"]


def test_tags_are_compared_word_by_word():
    assert tag_statistics([["A", "B"], ["C"], []], [["A", "C"], ["C"], []]).tolist() == [[1, 2], [1, 1], [0, 0]]


@pytest.mark.parametrize("statistics", [tag_statistics, span_statistics])
def test_sentences_of_different_length_are_never_cut(statistics):
    with pytest.raises(PolyloomError, match="tags: sentence 2 has 2 gold and 1 predicted tags"):
        statistics([["O"], ["O", "O"]], [["O"], ["O"]])
    with pytest.raises(PolyloomError, match="tags: 1 gold and 2 predicted sentences"):
        statistics([["O"]], [["O"], ["O"]])


def test_trees_of_different_length_are_never_cut():
    one, two = Tree(("a",), (0,), ("root",)), Tree(("a", "b"), (0, 1), ("root", "obj"))
    with pytest.raises(PolyloomError, match="words: sentence 1 has 1 gold and 2 predicted words"):
        attachment_statistics([one], [two])
    with pytest.raises(PolyloomError, match="words: 2 gold and 1 predicted sentences"):
        attachment_statistics([one, two], [one])


def test_every_word_counts_and_subtypes_do_not():
    gold = Tree(("Yes", "she", "sings", "!"), (3, 3, 0, 3), ("discourse", "nsubj:pass", "root", "punct"))
    predicted = Tree(gold.words, (3, 3, 0, 1), ("discourse:x", "nsubj", "punct", "punct"))
    assert attachment_statistics([gold], [predicted]).tolist() == [[3, 2, 4]]
    assert wrong_words(gold, predicted) == [2, 3]


def test_the_most_frequent_label_is_the_baseline():
    assert majority_share(["a", "b", "a", "c"]) == 50.0
    assert math.isnan(majority_share([]))
