"""Read raw results: means over languages and seeds, their intervals, differences between rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from experiments.storage import RESULTS, read_plan, read_result
from polyloom.metrics.score import Array, Score
from polyloom.metrics.significance import resampled_sums

SAMPLES = 1000
CORPORA = read_plan("corpora")
SEEN = [language for language in CORPORA["seen"] if language != "en"]
UNSEEN = CORPORA["unseen"]
GROUPS = {"seen": SEEN, "unseen": UNSEEN, "all": [*SEEN, *UNSEEN]}


@dataclass(frozen=True)
class Value:
    """A score without statistics of single sentences, such as a loss; it has no interval."""

    value: float


@dataclass(frozen=True)
class Row:
    """The runs of a row, one per seed, and their scores by condition."""

    runs: Sequence[Mapping[str, Any]]
    scores: Sequence[Mapping[str, Score | Value]]

    def first(self, seeds: int = 1) -> "Row":
        """Select the first seeds."""
        return Row(self.runs[:seeds], self.scores[:seeds])

    def mean(self, key: str) -> float:
        """Average a figure of the training summary over seeds."""
        return float(np.mean([run["training"][key] for run in self.runs]))


Selection = list[tuple[Row, str]]  # rows with conditions, to average over


def select(rows: Row | Sequence[Row], task: str, languages: Iterable[str], *, zero_shot: bool = False) -> Selection:
    """Select the scored conditions of a task and of some languages, optionally only the zero-shot ones."""
    conditions = [f"{task}/{language}" for language in languages]
    return [
        (row, condition)
        for condition in conditions
        for row in ([rows] if isinstance(rows, Row) else rows)
        if row.scores
        and condition in row.scores[0]
        and not (zero_shot and condition in row.runs[0]["recipe"]["data"]["train"])
    ]


def by_seed(selection: Selection) -> Array:
    """Average over conditions, for each seed."""
    seeds = min(len(row.runs) for row, _ in selection)
    return np.array([np.mean([row.scores[seed][c].value for row, c in selection]) for seed in range(seeds)])


def mean(selection: Selection) -> float:
    """Average over conditions and seeds."""
    return float(by_seed(selection).mean())


def resampled(selection: Selection) -> Array:
    """Compute the mean of many bootstrap samples; the same conditions are resampled alike, so samples can be paired."""
    draws = [
        score.metric.value(resampled_sums(score.statistics_NP, number, samples=SAMPLES))
        for number, (row, c) in enumerate(selection)
        for score in (scores[c] for scores in row.scores)
        if isinstance(score, Score)
    ]
    return np.asarray(np.mean(draws, axis=0))


def interval(selection: Selection, minus: Selection | None = None) -> tuple[float, float]:
    """Compute the 95 % interval over sentences of a mean, or of the difference of two means."""
    samples = resampled(selection) - (0.0 if minus is None else resampled(minus))
    low, high = np.quantile(samples, [0.025, 0.975])
    return float(low), float(high)


def difference(selection: Selection, minus: Selection, *, digits: int = 1) -> str:
    """Format the difference of two means of the same conditions, with its interval if there are single sentences."""
    assert [c for _, c in selection] == [c for _, c in minus], "means of the same conditions"
    if not selection:
        return "–"
    text = f"{mean(selection) - mean(minus):+.{digits}f}"
    if not all(_has_sentences(scores[c]) for row, c in (*selection, *minus) for scores in row.scores):
        return text
    low, high = interval(selection, minus)
    return f"{text} [{low:+.{digits}f}, {high:+.{digits}f}]"


def _has_sentences(score: Score | Value) -> bool:
    return isinstance(score, Score) and len(score.statistics_NP) > 1


def spread(selection: Selection, *, digits: int = 1) -> str:
    """Format a mean, with the standard deviation over seeds if there are several."""
    if not selection:
        return "–"
    values = by_seed(selection)
    deviation = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{deviation}"


@cache
def results(experiment: str) -> dict[str, Row]:
    """Read all rows of an experiment that have results."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / experiment).glob("*.json")):
        run = read_result(path)
        runs.setdefault(run["row"], []).append(run)
    return {row: Row(seeds, [first_scores(run["results"]) for run in seeds]) for row, seeds in runs.items()}


def result(experiment: str, row: str) -> Row:
    """Read one row of an experiment; raise KeyError with its full name if it has no results."""
    if row not in results(experiment):
        raise KeyError(f"{experiment}/{row}")
    return results(experiment)[row]


def stored(kind: str, name: str) -> dict[str, Any]:
    """Read one raw result; raise KeyError if there is none."""
    if not (found := read_result(RESULTS / kind / f"{name}.json")):
        raise KeyError(f"{kind}/{name}")
    return found


def first_scores(by_condition: Mapping[str, Any]) -> dict[str, Score]:
    """Read the first score of every condition."""
    return {condition: Score.from_dict(result["scores"][0]) for condition, result in by_condition.items()}


def second(row: Row, metric: str, key: str = "results") -> Row:
    """Read the scores of another metric of the task."""
    scores = [
        {c: Score.from_dict(s) for c, result in run[key].items() for s in result["scores"] if s["metric"] == metric}
        for run in row.runs
    ]
    return Row(row.runs, scores)


def swapped(row: Row, donors: Mapping[str, str]) -> tuple[Row, Row]:
    """Read the scores with own weights and with each language's donor, of the runs that were scored with donors."""
    runs = [run for run in row.runs if run["swaps"]]
    scores = [
        {c: Score.from_dict(by[d]["scores"][0]) for c, by in run["swaps"].items() if (d := _donor(c, donors)) in by}
        for run in runs
    ]
    own = [{c: first_scores(run["results"])[c] for c in chosen} for run, chosen in zip(runs, scores, strict=True)]
    return Row(runs, own), Row(runs, scores)


def _donor(condition: str, donors: Mapping[str, str]) -> str | None:
    return donors.get(condition.partition("/")[2])


def layer_rows(run: str) -> dict[str, Row]:
    """Read a run's scores with its own weights in some layers only, by those layers."""
    by_layers = stored("layers", run)["results"]
    return {layers: Row([stored("transfer", run)], [first_scores(scores)]) for layers, scores in by_layers.items()}


def source_losses(run: str) -> dict[str, dict[str, float]]:
    """Read a translation run's losses by direction, with ``own`` sources and with those of ``other`` pairs."""
    losses: dict[str, dict[str, float]] = stored("sources", run)["results"]
    return losses


def few_shot_rows(start: str, language: str) -> list[Row]:
    """Read the rows after 0, 5, 10, 20 and 50 labelled sentences of a language, first seed.

    The first has the scores of the run that all others start from: those of the second before its first step.
    """
    method = start.partition("-")[0]
    rows = [result("few-shot", f"{method}-{language}-{count}") for count in (5, 10, 20, 50)]
    return [Row(rows[0].runs, result("transfer", start).first().scores), *rows]
