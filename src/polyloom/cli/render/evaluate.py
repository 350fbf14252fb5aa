"""Format a matrix of scores as a table, Markdown, JSON or TSV."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyloom.cli.render.tables import Format, aligned, markdown, tabs
from polyloom.conditions import Condition
from polyloom.evaluate.directions import Resources, grid_table, group_table
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.io.plain_json import to_json
from polyloom.metrics.score import Score
from polyloom.metrics.significance import Interval, bootstrap_interval

MANY = 12  # languages beyond which a table of source × target is wider than a terminal; a figure has room
SEED = 0  # of the bootstrap: the same scores always have the same interval


@dataclass(frozen=True)
class Extras:
    """Optional columns and notes beside the scores.

    Attributes:
        intervals: Whether to show 95 % confidence intervals. Default: no.
        signatures: Whether to show the signatures: metric, data and versions. Default: no.
        baselines: Scores of the most frequent label, by condition. Default: not shown.
        resources: Training pairs of directions, to also show means of groups by resources. Default: not shown.
    """

    intervals: bool = False
    signatures: bool = False
    baselines: Mapping[Condition, float] | None = None
    resources: Resources | None = None


def render(matrix: Matrix, form: Format, extras: Extras) -> str:
    """Format a matrix as text."""
    if form == "json":
        refused = {str(condition): reason for condition, reason in matrix.refused.items()}
        entries = list(_entries(matrix, extras))
        return to_json({"run": matrix.run, "scores": entries, "refused": refused}, indent=2) + "\n"
    if form == "tsv":
        rows = [[_result(value) for value in entry.values()] for entry in _entries(matrix, extras)]
        return tabs(list(next(_entries(matrix, extras), {})), rows)
    write = markdown if form == "markdown" else aligned
    tables = [write(*_grid(matrix, extras))]
    columns, groups = group_table(matrix, extras.resources)
    if groups:
        tables.append(write(columns, groups))
        metric = columns[2]
        columns, directions = grid_table(matrix, metric)
        if 2 < len(directions) <= MANY:
            tables.append(write([f"{metric}: {columns[0]}", *columns[1:]], directions))
    return "\n".join([*tables, *_notes(matrix, extras)]).rstrip("\n") + "\n"


def _entries(matrix: Matrix, extras: Extras) -> Iterator[dict[str, Any]]:
    """Yield one entry per score."""
    for condition, result in matrix.results.items():
        for number, score in enumerate(result.scores):
            entry: dict[str, Any] = {"condition": str(condition), "metric": score.metric.name, "value": score.value}
            entry |= {"zero_shot": result.zero_shot, "sentences": score.count}
            entry |= {"cut": result.cut, "split": result.split}
            if extras.intervals:
                interval = _interval(score)
                entry |= {"low": interval.low, "high": interval.high}
            if extras.baselines is not None:
                entry["majority"] = extras.baselines.get(condition) if number == 0 else None
            yield entry | {"signature": score.signature}


def _grid(matrix: Matrix, extras: Extras) -> tuple[list[str], list[list[str]]]:
    """Build a table with one row per language (pair), one column per task and metric, and means below."""
    columns = ["language"]
    rows: dict[str, dict[str, str]] = {_language(c): {} for c in (*matrix.results, *matrix.refused)}
    means: dict[bool | None, dict[str, str]] = {None: {}, False: {}, True: {}}
    for task, metric in matrix.metrics():
        columns.append(f"{task} {metric}")
        for kind, row in means.items():
            row[columns[-1]] = _number(matrix.mean(task, metric, zero_shot=kind))
        if any(condition.task == task for condition in extras.baselines or ()) and f"{task} majority" not in columns:
            columns.append(f"{task} majority")
    for condition, result in matrix.results.items():
        row = rows[_language(condition)]
        for score in result.scores:
            text = f"{score.value:.2f}{MARK if result.zero_shot else ''}"
            if extras.intervals:
                text += " [{:.2f}, {:.2f}]".format(*_interval(score))
            row[f"{condition.task} {score.metric.name}"] = text
        if extras.baselines and condition in extras.baselines:
            row[f"{condition.task} majority"] = f"{extras.baselines[condition]:.2f}"
    for condition in matrix.refused:
        rows[_language(condition)] |= {f"{t} {metric}": "–" for t, metric in matrix.metrics() if t == condition.task}
    rows["mean"] = means[None]
    if len({result.zero_shot for result in matrix.results.values()}) == 2:
        rows |= {"mean of trained": means[False], f"mean of zero-shot{MARK}": means[True]}
    return columns, [[name, *(row.get(column, "") for column in columns[1:])] for name, row in rows.items()]


def _notes(matrix: Matrix, extras: Extras) -> Iterator[str]:
    if any(result.zero_shot for result in matrix.results.values()):
        yield f"{MARK} zero-shot: no labelled example of this task in this language (or direction) in training."
    if extras.intervals:
        yield "[low, high]: 95 % of 1000 resamplings of the sentences."
    if extras.baselines is not None:
        yield "majority: predicting the most frequent label of the test data everywhere; for ner, no entities."
    if extras.resources is not None:
        low, high = extras.resources.low, extras.resources.high
        yield f"low, medium, high: fewer than {low:,} training pairs, fewer than {high:,}, and more."
    for condition, result in matrix.results.items():
        for count, became in ((result.cut, "cut"), (result.split, "translated in parts")):
            if count:
                yield f"{condition}: {count:,} inputs were longer than the model's maximum and were {became}."
    for condition, reason in matrix.refused.items():
        yield f"– {condition} is not supported: {reason}"
    if extras.signatures:
        yield ""
        yield from (score.signature for result in matrix.results.values() for score in result.scores)


def _interval(score: Score) -> Interval:
    return bootstrap_interval(score, SEED) if score.count > 1 else Interval(math.nan, math.nan)


def _language(condition: Condition) -> str:
    return "/".join(filter(None, (condition.source, condition.target)))


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"


def _result(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
