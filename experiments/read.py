"""Results read back: means over languages and seeds, their intervals, differences between rows."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from job import HERE, RESULTS

from polyloom.io.yaml import read_settings
from polyloom.metrics.score import Array, Score
from polyloom.metrics.significance import resampled_sums

SAMPLES = 1000
CORPORA = read_settings(HERE / "corpora.yaml")
SEEN = [language for language in CORPORA["seen"] if language != "en"]
UNSEEN = CORPORA["unseen"]
GROUPS = {"seen": SEEN, "unseen": UNSEEN, "all": [*SEEN, *UNSEEN]}


@dataclass(frozen=True)
class Row:
    """The runs of a row, one per seed, and what they scored."""

    runs: Sequence[Mapping[str, Any]]
    scores: Sequence[Mapping[str, Score]]

    def first(self, seeds: int = 1) -> "Row":
        """The same with the first seeds only."""
        return Row(self.runs[:seeds], self.scores[:seeds])

    def mean(self, key: str) -> float:
        """The mean over seeds of something about training."""
        return float(np.mean([run["training"][key] for run in self.runs]))


Cells = list[tuple[Row, str]]  # rows with conditions: what a mean is taken over


def cells(rows: Row | Sequence[Row], task: str, languages: Iterable[str], *, zero_shot: bool = False) -> Cells:
    """The conditions of rows that are of a task and of some languages; only those not learnt from, if so wanted."""
    chosen = [f"{task}/{language}" for language in languages]
    return [
        (row, condition)
        for condition in chosen
        for row in ([rows] if isinstance(rows, Row) else rows)
        if row.scores
        and condition in row.scores[0]
        and not (zero_shot and condition in row.runs[0]["recipe"]["data"]["train"])
    ]


def by_seed(chosen: Cells) -> Array:
    """The mean over cells, of each seed."""
    seeds = min(len(row.runs) for row, _ in chosen)
    return np.array([np.mean([row.scores[seed][c].value for row, c in chosen]) for seed in range(seeds)])


def mean(chosen: Cells) -> float:
    """The mean over cells and seeds."""
    return float(by_seed(chosen).mean())


def resampled(chosen: Cells) -> Array:
    """That mean over sentences drawn anew, many times; alike for the same conditions, so that one can subtract."""
    draws = [
        scores[c].metric.value(resampled_sums(scores[c].statistics_NP, number, samples=SAMPLES))
        for number, (row, c) in enumerate(chosen)
        for scores in row.scores
    ]
    return np.asarray(np.mean(draws, axis=0))


@cache
def results(experiment: str) -> dict[str, Row]:
    """All rows of an experiment that have results."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / experiment).glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        runs.setdefault(run["row"], []).append(run)
    return {row: Row(some, [scores_of(run["cells"]) for run in some]) for row, some in runs.items()}


def stored(kind: str, name: str) -> dict[str, Any]:
    """What was found out about a finished run, if it was."""
    path = RESULTS / kind / f"{name}.json"
    if not path.exists():
        raise KeyError(name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def layer_rows(run: str) -> dict[str, Row]:
    """What a run scored with its own weights in some layers only (layers.py), by those layers."""
    path = RESULTS / "layers" / f"{run}.json"
    cells = stored("layers", run)["cells"] if path.exists() else {}
    return {layers: Row([{}], [scores_of(some)]) for layers, some in cells.items()}


def source_losses(run: str) -> dict[str, dict[str, float]]:
    """Of a translation run, the losses of every direction with ``own`` sources and with those of ``other`` pairs."""
    found: dict[str, dict[str, float]] = stored("sources", run)["cells"]
    return found


def few_shot_scores(start: str, language: str) -> list[float]:
    """Accuracy of a finished run's method after 0, 5, 10, 20 and 50 sentences of a language; first seed."""
    method, condition = start.partition("-")[0], f"pos/{language}"
    rows = [results("few-shot")[f"{method}-{language}-{count}"] for count in (5, 10, 20, 50)]
    return [row.scores[0][condition].value for row in (results("transfer")[start], *rows)]


def second(row: Row, metric: str, key: str = "cells") -> Row:
    """The same by another metric of the task."""
    chosen = [
        {c: Score.from_dict(s) for c, cell in run[key].items() for s in cell["scores"] if s["metric"] == metric}
        for run in row.runs
    ]
    return Row(row.runs, chosen)


def swapped(row: Row, donors: Mapping[str, str]) -> tuple[Row, Row]:
    """A row's runs that were scored with weights of other languages, and those scores: of each language's donor."""
    runs = [run for run in row.runs if run["swaps"]]
    scores = [
        {c: Score.from_dict(by[d]["scores"][0]) for c, by in run["swaps"].items() if (d := _donor(c, donors)) in by}
        for run in runs
    ]
    own = [{c: scores_of(run["cells"])[c] for c in some} for run, some in zip(runs, scores, strict=True)]
    return Row(runs, own), Row(runs, scores)


def difference(one: Cells, other: Cells) -> str:
    """One mean minus another, with its 95 % interval over sentences."""
    assert [c for _, c in one] == [c for _, c in other], "means of the same conditions"
    if not one:
        return "–"
    low, high = np.quantile(resampled(one) - resampled(other), [0.025, 0.975])
    return f"{mean(one) - mean(other):+.1f} [{low:+.1f}, {high:+.1f}]"


def spread(chosen: Cells) -> str:
    """A mean, and with several seeds their standard deviation."""
    if not chosen:
        return "–"
    values = by_seed(chosen)
    return f"{values.mean():.1f}" + (f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else "")


def _donor(condition: str, donors: Mapping[str, str]) -> str | None:
    return donors.get(condition.partition("/")[2])


def scores_of(stored: Mapping[str, Any]) -> dict[str, Score]:
    """The first score of every condition."""
    return {condition: Score.from_dict(cell["scores"][0]) for condition, cell in stored.items()}
