"""The verdict says who is better, by how much and how surely; caveats name what else may explain a difference."""

from dataclasses import replace

import numpy as np
import pytest

from polyloom.conditions import Condition
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.metrics.score import ACCURACY, PERPLEXITY, Metric, Score
from polyloom.metrics.significance import mean_difference, paired_bootstrap
from polyloom.report.sections.comparison import compare_sources
from polyloom.report.sections.verdict import caveats, task_results, verdict_section
from polyloom.report.sources import read_source
from polyloom.training.history import History
from tests.report.reading import Page


def score(values: list[float], metric: Metric = ACCURACY) -> Score:
    """Of sentences with ten words each, or ten tokens with this perplexity."""
    parts = [[10 * np.log(v), 10] if metric is PERPLEXITY else [round(v / 10), 10] for v in values]
    return Score(metric, np.array(parts), "")


def matrix(
    task: str = "pos", metric: Metric = ACCURACY, zero_shot: tuple[str, ...] = (), **languages: list[float]
) -> Matrix:
    results = {Condition(task, name): Result((score(v, metric),), name in zero_shot) for name, v in languages.items()}
    return Matrix(results)


@pytest.fixture
def source(madx):
    return read_source(madx, name="first", split="test")


def verdict(source, a: Matrix, b: Matrix):
    first, other = replace(source, matrix=a), replace(source, name="second", matrix=b)
    section = verdict_section([first, other], [compare_sources(first, other)])
    return section.data["verdicts"][0]


def test_the_mean_difference_of_one_condition_is_its_paired_bootstrap():
    draw = np.random.default_rng(0)
    a, b = (score(list(draw.integers(0, 11, 50) * 10.0)) for _ in range(2))
    assert mean_difference([(a, b)], samples=500) == pytest.approx(paired_bootstrap(a, b, seed=0, samples=500))
    swapped = mean_difference([(b, a)], samples=500)
    assert swapped.difference == pytest.approx(b.value - a.value)


def test_the_mean_difference_of_several_conditions_is_surer_than_each():
    draw = np.random.default_rng(1)
    pairs = [
        (score(list(draw.integers(3, 11, n) * 10.0)), score(list(draw.integers(0, 9, n) * 10.0))) for n in (40, 50, 60)
    ]
    together = mean_difference(pairs)
    assert together.difference == pytest.approx(np.mean([a.value - b.value for a, b in pairs]))
    assert together.low < together.difference < together.high
    alone = [mean_difference([pair]) for pair in pairs]
    assert together.high - together.low < min(one.high - one.low for one in alone)


def test_mean_differences_keep_their_level():
    """Of systems that are equally good, about 5 % of differences are called significant."""
    draw, found = np.random.default_rng(2), []
    for _ in range(200):
        systems = [[score(list(draw.integers(0, 11, 60) * 10.0)) for _ in range(3)] for _ in range(2)]
        found.append(mean_difference(list(zip(*systems, strict=True)), samples=400).p_value < 0.05)
    assert 0.01 <= np.mean(found) <= 0.11


def test_the_better_run_is_named_whichever_way_the_metric_goes(source):
    good, bad = [90.0, 100.0, 90.0, 80.0] * 5, [10.0, 20.0, 10.0, 0.0] * 5
    found = verdict(source, matrix(aa=good, bb=good), matrix(aa=bad, bb=bad))
    assert found.headline == "first is better than second in pos."
    assert "90.0 against 10.0, difference +80.0 (95 % interval +80.0 to +80.0, p < 0.001)" in found.findings[0].numbers
    assert found.findings[0].numbers.startswith("Mean accuracy over 2 languages")
    low, high = [3.0, 4.0, 5.0, 3.5] * 5, [30.0, 40.0, 50.0, 35.0] * 5
    found = verdict(source, matrix("mlm", PERPLEXITY, aa=low), matrix("mlm", PERPLEXITY, aa=high))
    assert found.headline == "first is better than second in mlm."
    assert "difference −" in found.findings[0].numbers
    assert "(lower is better) over 1 language:" in found.findings[0].numbers
    assert verdict(source, matrix(aa=bad), matrix(aa=good)).headline == "second is better than first in pos."


def test_what_is_not_shown_is_not_claimed(source):
    same = [50.0, 60.0, 40.0, 50.0]
    found = verdict(source, matrix(aa=same), matrix(aa=[60.0, 50.0, 50.0, 40.0]))
    assert found.headline == "first and second do not differ significantly in pos."
    assert found.findings[0].claim == "pos: no significant difference."


def test_zero_shot_languages_are_also_told_alone(source):
    good, bad = [90.0, 100.0, 90.0, 80.0] * 5, [10.0, 20.0, 10.0, 0.0] * 5
    a, b = (matrix(zero_shot=("bb",), aa=good, bb=values) for values in (bad, good))
    numbers = verdict(source, a, b).findings[0].numbers
    assert "Zero-shot only: mean accuracy over 1 language: 10.0 against 90.0, difference −80.0" in numbers
    headline = verdict(
        source, matrix(zero_shot=("cc",), aa=good, bb=good, cc=bad), matrix(zero_shot=("cc",), aa=bad, bb=bad, cc=good)
    ).headline
    assert headline == "first is better than second in pos. On zero-shot languages alone, second is better in pos."
    results = task_results(a, b)
    assert [(r.task, len(r.conditions), r.means) for r in results] == [("pos", 2, (50.0, 90.0))]


def titles(found) -> list[str]:
    return [caveat.title for caveat in found]


def test_caveats_name_what_differs(source):
    equal = replace(source, name="second")
    assert titles(caveats([source, equal]))[:1] == ["One seed"]
    assert "Unequal training data" not in titles(caveats([source, equal]))
    assert "Unequal training budgets" not in titles(caveats([source, equal]))
    seed = replace(source.recipe, train=replace(source.recipe.train, seed=7))
    assert titles(caveats([source, replace(equal, recipe=seed)]))[0] == "Same settings"

    data = {name: corpora for name, corpora in source.recipe.data.train.items() if name != "pos/bb"}
    less = replace(equal, recipe=replace(source.recipe, data=replace(source.recipe.data, train=data)))
    text = next(c.text for c in caveats([source, less]) if c.title == "Unequal training data")
    assert text == "only first was trained on pos/bb."
    begin = source.history.begin
    hashes = replace(source.history, begin=replace(begin, corpora=dict.fromkeys(begin.corpora, "0")))
    assert "Unequal training data" in titles(caveats([source, replace(equal, history=hashes)]))

    done = source.history.done
    longer = replace(source.history, done=replace(done, tokens=2 * done.tokens))
    assert "Unequal training budgets" in titles(caveats([source, replace(equal, history=longer)]))
    other = replace(source.recipe, backbone=replace(source.recipe.backbone, dtype="bf16"))
    assert "Different backbones" in titles(caveats([source, replace(equal, recipe=other)]))


def test_caveats_name_unfinished_runs_validation_data_and_zero_shot(source):
    running = replace(source, history=replace(source.history, done=None))
    assert "Unfinished" in titles(caveats([running]))
    assert "Unfinished" not in titles(caveats([source]))
    assert "Validation data" in titles(caveats([replace(source, split="validation")]))
    assert "Zero-shot" in titles(caveats([source]))
    one = replace(source, matrix=matrix(zero_shot=("aa",), aa=[50.0, 60.0]))
    two = replace(source, name="second", matrix=matrix(aa=[50.0, 60.0]))
    for pair in ((one, two), (two, one)):
        assert titles(caveats(pair))[-2:] == ["Zero-shot for one run only", "Zero-shot"]
        text = next(c.text for c in caveats(pair) if c.title == "Zero-shot for one run only")
        assert text == "second was trained on the task and language of pos/aa, first was not."


def test_runs_without_scores_or_log_get_a_verdict_with_a_command(source):
    bare = replace(source, matrix=None, history=History())
    page = Page(verdict_section([bare], []).html())
    assert "first has no scores yet. Run: polyloom evaluate" in page.text()
    other = replace(source, name="second")
    page = Page(verdict_section([bare, other], [compare_sources(bare, other)]).html())
    assert "No comparison: no scores of first yet. Run: polyloom evaluate" in page.text()
