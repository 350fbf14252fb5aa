"""Two runs cell by cell, the scores that are kept beside a run, and what one scores without having learnt."""

import json
import math

import numpy as np
import pytest

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.errors import PolyloomError
from polyloom.evaluate.comparison import Comparison, compare
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.evaluate.saved import read_stored, store
from polyloom.metrics.score import ACCURACY, PERPLEXITY, Metric, Score, signature
from polyloom.metrics.significance import holm
from polyloom.tasks import TASKS
from tests.shared import DATA, needs_data
from tests.tiny_run import nli_label, pos_tag, sentences, write_corpora

TAGS_EN, TAGS_TR, TEXT_TR = Condition("pos", "en"), Condition("pos", "tr"), Condition("mlm", "tr")


def score(right: float, *, metric: Metric = ACCURACY, corpus: str = "c", seed: int = 0) -> Score:
    """Of 200 sentences of 10 words, most with `right` words right (or that loss per word)."""
    first = np.random.default_rng(seed).normal(right, 0.5, 200)
    whole = np.full(200, 10)
    statistics_NP = np.stack(
        [first.round().astype(int).clip(0, 10) if metric is ACCURACY else first.clip(0) * 10, whole], 1
    )
    return Score(
        metric, statistics_NP, signature(metric, statistics_NP, condition="x/y", corpus=corpus, sha256="0" * 64)
    )


def matrix(scores: dict[Condition, Score], checkpoint: str = "step-1") -> Matrix:
    return Matrix({c: Result((s,), zero_shot=False) for c, s in scores.items()}, run={"checkpoint": checkpoint})


def test_verdicts_follow_the_direction_of_the_metric():
    a = matrix({TAGS_EN: score(9), TAGS_TR: score(5), TEXT_TR: score(2, metric=PERPLEXITY)})
    b = matrix({TAGS_EN: score(7), TAGS_TR: score(5, seed=1), TEXT_TR: score(3, metric=PERPLEXITY)})
    ours, theirs = compare(a, b), compare(b, a)
    assert [one.verdict for one in ours.differences] == ["better", "not significant", "better"]
    assert [one.verdict for one in theirs.differences] == ["worse", "not significant", "worse"]
    for one in ours.differences:
        assert one.interval[0] <= one.a - one.b <= one.interval[1]
        assert one.p_value <= one.corrected <= 3 * one.p_value + 1e-12
    values = [a.results[condition].scores[0].value for condition in (TAGS_EN, TAGS_TR)]
    assert ours.means()["pos", "accuracy"][0] == pytest.approx(sum(values) / 2)


def test_a_run_does_not_differ_from_itself():
    run = matrix({TAGS_EN: score(9), TEXT_TR: score(2, metric=PERPLEXITY)})
    for one in compare(run, run).differences:
        assert (one.a - one.b, one.interval, one.p_value, one.verdict) == (0, (0, 0), 1, "not significant")


def test_forty_cells_are_not_forty_chances_to_be_better():
    results = {Condition("pos", f"l{i}"): i for i in range(40)}
    a = matrix({c: score(5, seed=2 * i) for c, i in results.items()})
    b = matrix({c: score(5, seed=2 * i + 1) for c, i in results.items()})
    found = compare(a, b).differences
    assert any(one.p_value < 0.05 for one in found), "else this test shows nothing"
    assert {one.verdict for one in found} == {"not significant"}


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_what_only_one_run_has_is_said():
    found = compare(matrix({TAGS_EN: score(9), TAGS_TR: score(9)}), matrix({TAGS_EN: score(9), TEXT_TR: score(9)}))
    assert isinstance(found, Comparison)
    assert (found.only_a, found.only_b) == ((TAGS_TR,), (TEXT_TR,))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({TAGS_EN: score(9, corpus="c[200:400]")}, r"pos/en: comparison: one score is of \[:200\] .* \[200:400\]"),
        (
            {TAGS_EN: Score(ACCURACY, np.ones((9, 2)), "corpus:c[:200]|sha256:000000000000")},
            "pos/en: comparison: sentences is 200",
        ),
        ({TAGS_EN: score(9, corpus="c[random:200]")}, r"one score is of \[:200\] .* \[random:200\]"),
        ({TAGS_EN: score(9, corpus="c[random:300:1][:200]")}, r"one score is of \[:200\] .* \[random:300:1\]\[:200\]"),
        ({TAGS_TR: score(9)}, "no task and language in common"),
    ],
)
def test_other_data_are_refused(other, says):
    with pytest.raises(PolyloomError, match=says):
        compare(matrix({TAGS_EN: score(9, corpus="c[:200]")}), matrix(other))


def test_scores_are_kept_bit_for_bit_and_added_to(tmp_path):
    first = matrix({TEXT_TR: score(2, metric=PERPLEXITY)})
    path = store(first, tmp_path, "test")
    store(matrix({TAGS_EN: score(9)}), tmp_path, "test")
    kept = read_stored(tmp_path, "test", checkpoint="step-1")
    assert list(kept.results) == [TEXT_TR, TAGS_EN]
    assert np.array_equal(kept.results[TEXT_TR].scores[0].statistics_NP, first.results[TEXT_TR].scores[0].statistics_NP)
    assert [file.name for file in path.parent.iterdir()] == ["test.json"]


def test_scores_of_two_checkpoints_are_never_mixed(tmp_path):
    store(matrix({TEXT_TR: score(9)}), tmp_path, "test")
    store(matrix({TAGS_EN: score(9)}, checkpoint="step-2"), tmp_path, "test")
    assert list(read_stored(tmp_path, "test", checkpoint="step-2").results) == [TAGS_EN]
    with pytest.raises(PolyloomError, match=r"step-2, but the run's checkpoint is now step-3.*polyloom evaluate"):
        read_stored(tmp_path, "test", checkpoint="step-3")


def test_damaged_scores_are_refused_and_replaced(tmp_path):
    path = store(matrix({TAGS_EN: score(9)}), tmp_path, "validation")
    path.write_text(path.read_text()[:100])
    with pytest.raises(PolyloomError, match=r"validation\.json: damaged"):
        read_stored(tmp_path, "validation", checkpoint="step-1")
    store(matrix({TAGS_TR: score(9)}), tmp_path, "validation")
    assert json.loads(path.read_text())["results"].keys() == {"pos/tr"}
    with pytest.raises(PolyloomError, match=r"no scores on test here. Make them: polyloom evaluate [^ ]+$"):
        read_stored(tmp_path, "test", checkpoint="step-1")


def test_the_majority_is_counted_in_the_test_data(tmp_path):
    write_corpora(tmp_path)

    def share(labels: list[str]) -> float:
        return 100 * max(map(labels.count, labels)) / len(labels)

    def majority(task: str, name: str) -> float:
        return TASKS[task].majority(resolve(str(tmp_path / name)).records(TASKS[task].kind))

    tags = [pos_tag("bb", word) for words in sentences("test") for word in words]
    pairs = [nli_label("bb", words[len(words) // 2 :]) for words in sentences("test")]
    assert majority("pos", "bb-test.conllu") == pytest.approx(share(tags))
    assert majority("nli", "bb-test.pairs.tsv") == pytest.approx(share(pairs))
    assert majority("ner", "bb-test.tsv") == 0
    assert math.isnan(majority("dep", "bb-test.conllu"))
    assert math.isnan(majority("mlm", "bb-test.txt"))


@needs_data
def test_the_majority_of_a_real_treebank_is_its_nouns():
    assert TASKS["pos"].majority(resolve("ud:tr_boun/test", root=DATA).records("tags")) == pytest.approx(31, abs=3)
