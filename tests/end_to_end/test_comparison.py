"""A comparison of the result page is fair, or it is not printed; a verdict follows from its interval."""

from pathlib import Path

import pytest
from experiments.claims import claims_table, judge, read_claims
from experiments.comparison import Comparison, Side, UnfairError, batching
from experiments.read import Difference, MissingError, Row, Values, average, over, rows
from experiments.studies import STUDIES

TAGS = {"pos/kumi": 60.0, "pos/nina": 40.0}
TEST = {name: f"synthetic:{name}/test" for name in ("pos/kumi", "pos/nina", "pos/boza")}


def row_of(scores, *, method="full", seeds=(0, 1, 2), study="family", test=TEST, backbone=(), **train) -> Row:
    recipe = {"method": {"name": method}, "train": train or {"rows_per_batch": 64}, "data": {"test": test}}
    about = {"study": study, "row": method, "recipe": recipe, "commit": "abc", "backbone": backbone}
    return Row([about | {"seed": seed, "scores": {c: s + seed for c, s in scores.items()}} for seed in seeds])


def side(label, scores=TAGS, **about) -> Side:
    return Side(label, {"tags": average(row_of(scores, **about), scores)})


METHODS = [side(name, method=name) for name in ("full", "multilingual", "madx")]


def compare(*sides) -> Comparison:
    return Comparison(sides=sides, labels=("method",), base=sides[0].label)


def test_equal_rows_are_printed_with_their_difference():
    better = side("madx", {"pos/kumi": 62.0, "pos/nina": 41.0}, method="madx")
    printed = compare(*METHODS[:2], better).markdown()
    assert "| full | 51.0 ± 1.0 |" in printed
    assert "| madx | 52.5 ± 1.0 (+1.5 [+1.5, +1.5]) |" in printed


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (side("other", TAGS | {"pos/boza": 95.0}), r"test sets differ \(full: 2; other: 3\)"),
        (side("other", {"pos/kumi": 60.0, "pos/boza": 95.0}), "test sets differ"),
        (side("other", test=TEST | {"pos/kumi": "synthetic:kumi/test[:100]"}), "test sets differ"),
        (side("other", rows_per_batch=32), r"batches differ \(full: 64 rows; other: 32 rows\)"),
        (side("other", tokens_per_batch=512), "batches differ .*512 tokens"),
        (side("other", seeds=(0, 1, 3)), "seeds differ"),
        (side("other", backbone=["another"]), "backbones differ"),
        (side("other", study="map"), "learning rates tried differ"),
        (side("madx", method="madx"), "baselines are missing: multilingual"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused_with_the_reason(other, reason):
    with pytest.raises(UnfairError, match=reason):
        compare(METHODS[0], other)


def test_two_seeds_are_not_enough():
    with pytest.raises(MissingError, match="3 seeds of other"):
        compare(METHODS[0], side("other", seeds=(0, 1)))


def test_the_interval_is_that_of_student():
    low, high = Difference([1.0, 2.0, 3.0]).interval  # mean 2, deviation 1, t(2) = 4.303
    assert low == pytest.approx(2 - 4.30 / 3**0.5)
    assert high == pytest.approx(2 + 4.30 / 3**0.5)


def test_partitions_are_averaged_seed_by_seed():
    parts = [average(row_of({"pos/kumi": value}), ["pos/kumi"]) for value in (10.0, 20.0)]
    assert over(*parts).by_seed == [15.0, 16.0, 17.0]
    assert len(over(*parts).rows) == 2


@pytest.mark.parametrize(
    ("interval", "kind", "verdict"),
    [
        ((0.1, 3.0), "higher", "agrees"),
        ((-0.1, 3.0), "higher", "open"),
        ((-3.0, -0.1), "higher", "disagrees"),
        ((-1.9, 1.9), "on par", "agrees"),
        ((-1.0, 2.1), "on par", "open"),
        ((2.1, 4.0), "on par", "disagrees"),
        ((-4.0, -2.1), "on par", "disagrees"),
    ],
)
def test_a_verdict_follows_from_the_interval(interval, kind, verdict):
    assert judge(interval, kind) == verdict


def test_a_claim_without_results_is_counted_but_not_printed(monkeypatch):
    monkeypatch.setattr("experiments.read.RESULTS", Path("nowhere"))
    rows.cache_clear()
    claims = read_claims()
    count = sum(len(claim["studies"]) for claim in claims)
    assert f"{count} of {count} lines are not measured yet" in claims_table(claims)
    assert "MAD-X" not in claims_table(claims)
    rows.cache_clear()


@pytest.mark.parametrize("claim", read_claims(), ids=lambda claim: f"{claim['paper']}: {claim['claim']}")
def test_claims_name_rows_that_there_are(claim):
    for study in claim["studies"]:
        known = {job.row for job in STUDIES[study].jobs(Path())}
        for side in (claim["one"], claim["other"]):
            assert {side["row"], side.get("minus", side["row"])} <= known


def test_values_without_conditions_have_no_test_sets():
    losses = [Side(name, {"loss": Values([row_of(TAGS)], [1.0, 2.0, 3.0])}) for name in ("one", "two")]
    assert compare(*losses)


def test_batches_are_described_by_their_size():
    assert batching({"train": {"tokens_per_batch": 3072}}) == "3072 tokens"
