"""A recipe names the metrics of a task, also registered ones: they are validated, evaluated, compared and reported."""

import json
from typing import Any

import numpy as np
import pytest

import polyloom as pl
from polyloom.data.records import Bitext
from polyloom.metrics import Metric
from polyloom.metrics.bleu import chrf_statistics
from polyloom.metrics.score import CHRF_WORDS
from polyloom.rundir import RunDir
from polyloom.tasks.translation import Translation, TranslationConfig
from polyloom.training.history import History
from tests.tiny_run import tiny_recipe

ERRORS = Metric(  # another function of what accuracy counts
    "errors", ("right", "total"), lambda sums: 100 - 100 * sums[..., 0] / sums[..., 1], higher_is_better=False
)


@pytest.fixture
def _registered(load_example) -> None:
    load_example("own_metric")
    pl.register_metric(ERRORS)


def recipe(folder, metrics: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(tiny_recipe(folder, tasks=("pos",)).read_text())
    settings["tasks"] = {"pos": {"metrics": metrics}}
    settings["train"] |= {"steps": 20, "evaluate_every": 10}
    return settings


@pytest.mark.usefixtures("_registered")
def test_named_metrics_select_and_are_shown(tmp_path):
    runs = [
        pl.train(recipe(tmp_path, ["exact_match", "errors", "accuracy"]), tmp_path / name) for name in ("one", "two")
    ]
    run = pl.load(runs[0].path)

    # Validation scored the first metric, which selects checkpoints.
    validations = History.read(RunDir(run.path).log).validations
    assert {metric for event in validations for metric in event.metrics.values()} == {"exact_match"}

    # Scores from statistics are those computed directly.
    matrix = run.evaluate()
    for name, result in matrix.results.items():
        if name.source == "cc":  # not trained, which is a warning
            continue
        corpora = run.resolve(run.corpora()[str(name)])
        records: list[Any] = [record for corpus in corpora for record in corpus.records("tags")]
        predictions = run.predict(records, name)
        pairs = [(record.tags, prediction.labels) for record, prediction in zip(records, predictions, strict=True)]
        right = [tag == label for tags, labels in pairs for tag, label in zip(tags, labels, strict=True)]
        exact = [tags == labels for tags, labels in pairs]
        scores = {score.metric.name: score.value for score in result.scores}
        assert list(scores) == ["exact_match", "errors", "accuracy"]
        assert scores["exact_match"] == pytest.approx(100 * np.mean(exact))
        assert scores["accuracy"] == pytest.approx(100 * np.mean(right))
        assert scores["errors"] == pytest.approx(100 - scores["accuracy"])

    # Comparison and report have them.
    runs[1].evaluate()
    differences = pl.compare(*runs).differences
    assert {difference.metric for difference in differences} >= {"exact_match"}
    assert "exact_match" in run.report(tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (["exact_mach"], "tasks.pos.metrics: 'exact_mach': unknown metric. Did you mean 'exact_match'"),
        (
            ["bleu"],
            "tasks.pos.metrics: 'bleu': pos does not count what it needs. Known: accuracy, f1, exact_match",
        ),
        (["exact_match", "exact_match"], "tasks.pos.metrics: 'exact_match' is listed twice"),
    ],
)
def test_metrics_that_cannot_be_are_refused(tmp_path, metrics, says):
    with pytest.raises(pl.PolyloomError, match=says):
        pl.parse_recipe(recipe(tmp_path, metrics))


def test_chrf_with_words_can_be_named_for_translation():
    task = Translation(TranslationConfig(metrics=("chrf++", "bleu")), width=4)
    measured = task.measure_chosen([Bitext("a", "ein Haus")], ["ein Haus"], "de")
    assert [metric.name for metric in measured] == ["chrf++", "bleu"]
    assert measured[CHRF_WORDS].tolist() == chrf_statistics(["ein Haus"], ["ein Haus"], words=2).tolist()
