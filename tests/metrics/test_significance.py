"""Intervals cover the truth as often as they say, chance is called chance, and other data is refused."""

import numpy as np
import pytest

from polyloom.errors import PolyloomError
from polyloom.metrics import significance
from polyloom.metrics.score import ACCURACY, F1, LAS, PERPLEXITY, UAS, Metric, Score, signature
from polyloom.metrics.significance import bootstrap_interval, paired_bootstrap, resampled_sums

HASH = "0123456789abcdef" * 4


def score_of(metric: Metric, statistics, *, sha256: str = HASH) -> Score:
    return Score(metric, statistics, signature(metric, statistics, condition="x/tr", corpus="c", sha256=sha256))


def tagged(rng: np.random.Generator, lengths, *, right: float) -> Score:
    """A tagger whose sentences are easy or hard: words of a sentence are right or wrong together, more or less."""
    rates = rng.beta(8 * right, 8 * (1 - right), len(lengths))
    return score_of(ACCURACY, np.stack([rng.binomial(lengths, rates), lengths], axis=1))


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(400):
        low, high = bootstrap_interval(tagged(rng, rng.integers(1, 30, 150), right=0.8), trial, samples=300, level=0.9)
        covered += low <= 80.0 <= high
    assert 0.86 < covered / 400 < 0.94


def test_equally_good_systems_are_rarely_called_different():
    rng = np.random.default_rng(1)
    p_values = []
    for trial in range(400):
        lengths = rng.integers(1, 30, 150)
        a, b = (tagged(rng, lengths, right=0.8) for _ in "ab")
        p_values.append(paired_bootstrap(a, b, seed=trial, samples=300).p_value)
    for level in (0.05, 0.2, 0.5):
        assert np.mean(np.array(p_values) <= level) == pytest.approx(
            level, abs=3.5 * (level * (1 - level) / 400) ** 0.5
        )


def test_a_better_system_is_called_better_from_either_side():
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 30, 500)
    good, bad = tagged(rng, lengths, right=0.9), tagged(rng, lengths, right=0.8)
    forth, back = paired_bootstrap(good, bad, seed=0), paired_bootstrap(bad, good, seed=0)
    assert forth.low > 0 > back.high
    assert forth.p_value == back.p_value == 1 / 1001
    assert (forth.difference, forth.low, forth.high) == pytest.approx((-back.difference, -back.high, -back.low))
    assert forth.difference == good.value - bad.value


def test_a_system_does_not_differ_from_itself():
    one = tagged(np.random.default_rng(3), np.full(50, 7), right=0.7)
    assert paired_bootstrap(one, one, seed=0) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("datasets", [1, 500, 1 << 20])
@pytest.mark.parametrize("metric", [ACCURACY, F1, UAS, LAS, PERPLEXITY])
def test_fast_and_slow_agree_whatever_the_chunk(metric, datasets, monkeypatch):
    monkeypatch.setattr(significance, "_MAX_DRAWN", datasets)
    rng = np.random.default_rng(4)
    right, predicted, last = rng.binomial(8, 0.3, 60), rng.integers(8, 12, 60), rng.integers(8, 12, 60)
    columns = [right, predicted, last][-len(metric.statistics) :] if metric is PERPLEXITY else [right, predicted, last]
    if metric is ACCURACY:
        columns = [right, last]
    a = score_of(metric, np.stack(columns, axis=1) * (1.0 if metric is PERPLEXITY else 1))
    b = score_of(
        metric,
        a.statistics_NP + np.eye(1, len(metric.statistics), dtype=a.statistics_NP.dtype) * rng.integers(0, 2, (60, 1)),
    )

    draws = np.random.default_rng(5)
    values, differences = [], []
    for _ in range(101):
        picked = [int(i) for i in draws.integers(60, size=60)]
        one, other = (Score(metric, np.array([score.statistics_NP[i] for i in picked]), "").value for score in (a, b))
        values.append(one)
        differences.append(one - other)
    observed = a.value - b.value
    extreme = sum(abs(d - observed) >= abs(observed) for d in differences)

    # With 101 samples the percentiles of the 90 % interval are the 6th and the 96th value.
    assert bootstrap_interval(a, 5, samples=101, level=0.9) == pytest.approx((sorted(values)[5], sorted(values)[95]))
    comparison = paired_bootstrap(a, b, seed=5, samples=101, level=0.9)
    expected = (observed, sorted(differences)[5], sorted(differences)[95], (extreme + 1) / 102)
    assert comparison == pytest.approx(expected)


def test_sums_of_large_counts_are_exact():
    statistics = np.full((100, 2), 2**44 + 1)
    assert (resampled_sums(statistics, 0, samples=3) == 100 * (2**44 + 1)).all()


def test_seed_decides():
    score = tagged(np.random.default_rng(6), np.full(50, 7), right=0.7)
    assert bootstrap_interval(score, 1) == bootstrap_interval(score, 1) != bootstrap_interval(score, 2)


def test_other_data_is_refused():
    statistics = np.array([[1, 2], [2, 5], [3, 4]])
    one = score_of(ACCURACY, statistics)
    for other, what in (
        (score_of(ACCURACY, statistics, sha256="f" * 64), "sha256 is 0123456789ab for one score and ffffffffffff"),
        (score_of(ACCURACY, statistics[:2]), "sentences is 3 for one score and 2"),
        (score_of(UAS, np.array([[1, 1, 2], [2, 2, 5], [3, 3, 4]])), "metric is accuracy for one score and uas"),
        (Score(ACCURACY, statistics, f"{one.signature}|checkpoint:b"), "checkpoint is None for one score and b"),
        (score_of(ACCURACY, statistics[::-1]), "have different numbers of total in some sentences"),
    ):
        with pytest.raises(PolyloomError, match=what):
            paired_bootstrap(one, other, seed=0)


def test_too_little_to_resample_is_refused():
    with pytest.raises(PolyloomError, match="1 sentences and 1000 samples"):
        bootstrap_interval(score_of(ACCURACY, np.array([[1, 2]])), 0)
    two = score_of(ACCURACY, np.array([[1, 2], [2, 2]]))
    with pytest.raises(PolyloomError, match="2 sentences and 0 samples"):
        bootstrap_interval(two, 0, samples=0)
    assert bootstrap_interval(two, 0, samples=1)[0] in (50.0, 75.0, 100.0)
    for level in (0, 1, 95):
        with pytest.raises(PolyloomError, match=f"level {level} is"):
            bootstrap_interval(two, 0, level=level)


def test_nan_is_never_significant():
    nothing = score_of(PERPLEXITY, np.zeros((5, 2)))
    assert paired_bootstrap(nothing, nothing, seed=0).p_value == 1.0
