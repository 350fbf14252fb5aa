"""Format a matrix of scores as a table, Markdown, JSON or TSV."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyloom.cli.render.tables import Format, aligned, markdown, tabs
from polyloom.conditions import Condition
from polyloom.evaluate.directions import Resources, grid_table, group_table
from polyloom.evaluate.matrix import MARK, Matrix, score_table, score_text
from polyloom.io.plain_json import to_json
from polyloom.metrics.score import Score
from polyloom.metrics.significance import Interval, bootstrap_interval

MANY = 12  # languages beyond which a table of source × target is wider than a terminal; a figure has room
SEED = 0  # of the bootstrap: the same scores always have the same interval


@dataclass(frozen=True)
class Extras:
    """Optional columns and notes beside the scores."""

    intervals: bool = False
    """Whether to show 95 % confidence intervals."""
    signatures: bool = False
    """Whether to show the signatures: metric, data and versions."""
    baselines: Mapping[Condition, float] | None = None
    """Scores of the most frequent label, by condition."""
    resources: Resources | None = None
    """Training pairs of directions, to also show means of groups by resources."""


def render(matrix: Matrix, form: Format, extras: Extras) -> str:
    """Format a matrix as text."""
    if form == "json":
        refused = {str(condition): reason for condition, reason in matrix.refused.items()}
        entries = list(_entries(matrix, extras))
        return to_json({"run": matrix.run, "scores": entries, "refused": refused}, indent=2) + "\n"
    if form == "tsv":
        entries = list(_entries(matrix, extras))
        return tabs(list(entries[0]) if entries else [], [list(map(_tsv, entry.values())) for entry in entries])
    write = markdown if form == "markdown" else aligned
    tables = [write(*_languages_by_tasks(matrix, extras))]
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


def _languages_by_tasks(matrix: Matrix, extras: Extras) -> tuple[list[str], list[list[str]]]:
    """Write the table of scores, with intervals and the majority baseline where they are wanted."""
    table, baselines = score_table([matrix]), extras.baselines or {}
    tasks = [task for task, _ in table.columns]
    # The baseline of a task comes after its first metric, which it is comparable with.
    with_baseline = [task not in tasks[:i] and any(c.task == task for c in baselines) for i, task in enumerate(tasks)]
    columns = ["language"]
    rows: list[list[str]] = [[name] for name in (*table.rows, *(name for name, _ in table.means))]
    for index, (task, metric) in enumerate(table.columns):
        columns += [f"{task} {metric}", *([f"{task} majority"] if with_baseline[index] else [])]
        for row, cells in zip(rows, table.cells, strict=False):
            (cell,) = cells[index]
            interval = " [{:.2f}, {:.2f}]".format(*_interval(cell.score)) if extras.intervals and cell.score else ""
            row.append(cell.text() + interval)
            if with_baseline[index]:
                row.append(score_text(baselines.get(Condition.parse(f"{task}/{row[0]}"), math.nan)))
        for row, (_, means) in zip(rows[len(table.rows) :], table.means, strict=True):
            row += [score_text(means[index][0]), *([""] if with_baseline[index] else [])]
    return columns, rows


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
        for count, what in ((result.cut, "cut"), (result.split, "translated in parts")):
            if count:
                yield f"{condition}: {count:,} inputs were longer than the model's maximum and were {what}."
    for condition, reason in matrix.refused.items():
        yield f"– {condition} is not supported: {reason}"
    if extras.signatures:
        yield ""
        yield from (score.signature for result in matrix.results.values() for score in result.scores)


def _interval(score: Score) -> Interval:
    """Compute the interval of a score; of fewer than two sentences there is none, they cannot be resampled."""
    return bootstrap_interval(score, SEED) if score.count > 1 else Interval(math.nan, math.nan)


def _tsv(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
