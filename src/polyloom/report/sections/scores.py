"""Scores: languages by tasks, grids of translation directions, each score with its interval and corpus."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from polyloom.conditions import Condition
from polyloom.evaluate.matrix import MARK, Matrix, Result
from polyloom.figures.palette import SCALE
from polyloom.figures.titles import metric_title
from polyloom.metrics.score import Score, read_signature
from polyloom.metrics.significance import bootstrap_interval
from polyloom.report.sources import Source
from polyloom.report.tables import Row, Shading, Table, TableCell, heat_classes
from polyloom.report.templating import Section

LISTED = 400  # more scores than this are not listed one by one
Column = tuple[str, str]  # a task and one of its metrics


def scores_section(sources: Sequence[Source]) -> Section:
    """Build the section on scores."""
    scored = [(source, source.matrix) for source in sources if source.matrix]
    data: dict[str, Any] = {
        "notes": [source.missing["scores"] for source in sources if "scores" in source.missing],
        "mark": MARK,
        "steps": range(len(SCALE)),
        "commands": [source.evaluation for source, _ in scored],
        "refused": [(s.name, c, reason) for s, matrix in scored for c, reason in matrix.refused.items()],
        "heat_map": None, "grids": [], "listing": None, "unlisted": 0,
    }  # fmt: skip
    if scored:
        columns = list(dict.fromkeys(column for _, matrix in scored for column in matrix.metrics()))
        matrices = [matrix for _, matrix in scored]
        grids = [column for column in columns if _is_grid(matrices, column[0])]
        plain = [column for column in columns if column not in grids]
        data["heat_map"] = _heat_map([s.name for s, _ in scored], matrices, plain) if plain else None
        data["grids"] = [
            (_grid(source.name, matrix, column, _shading(matrices, column)), matrix.mean(*column), source.evaluation)
            for column in grids
            for source, matrix in scored
        ]
        count = sum(len(result.scores) for matrix in matrices for result in matrix.results.values())
        data |= {"unlisted": count} if count > LISTED else {"listing": _listing([s.name for s, _ in scored], matrices)}
    return Section("scores", "Scores", data)


def _of_task(matrix: Matrix, task: str) -> Iterator[tuple[Condition, Result]]:
    return ((c, result) for c, result in matrix.results.items() if c.task == task)


def _is_grid(matrices: Sequence[Matrix], task: str) -> bool:
    """Return whether directions are better shown as sources by targets than one below another."""
    conditions = [c for matrix in matrices for c, _ in _of_task(matrix, task)]
    sources, targets = {c.source for c in conditions}, {c.target for c in conditions}
    return None not in targets and len(sources) > 1 and len(targets) > 1


def _score(result: Result | None, metric: str) -> Score | None:
    return next((score for score in result.scores if score.metric.name == metric), None) if result else None


def _shading(matrices: Sequence[Matrix], column: Column) -> Shading:
    task, metric = column
    scores = (_score(result, metric) for matrix in matrices for _, result in _of_task(matrix, task))
    return Shading([score.value for score in scores if score], metric)


def _heat_map(names: Sequence[str], matrices: Sequence[Matrix], columns: Sequence[Column]) -> Table:
    """Show languages by tasks, the runs side by side within each task."""
    shadings = {column: _shading(matrices, column) for column in columns}
    tasks = {task for task, _ in columns}
    conditions = [c for matrix in matrices for c in (*matrix.results, *matrix.refused) if c.task in tasks]
    languages = dict.fromkeys("/".join(c.languages) for c in conditions)
    rows: list[Row] = [
        [language, *(_result(matrix, f"{task}/{language}", metric, shadings[task, metric])
                     for task, metric in columns for matrix in matrices)]
        for language in languages
    ]  # fmt: skip
    kinds: list[tuple[str, bool | None]] = [("mean", None)]
    if len({result.zero_shot for matrix in matrices for result in matrix.results.values()}) == 2:
        kinds += [("mean of trained", False), (f"mean of zero-shot {MARK}", True)]
    foot = [
        [name, *(_mean(matrix, column, zero_shot=kind) for column in columns for matrix in matrices)]
        for name, kind in kinds
    ]
    heads = [f"{task} {metric_title(metric)}" for task, metric in columns]
    label = "Scores by language and task"
    if len(matrices) == 1:
        return Table(label, ["language", *heads], rows, foot, "heat")
    runs = [name for _ in columns for name in names]
    return Table(label, ["language", *runs], rows, foot, "heat", [(head, len(matrices)) for head in heads])


def _result(matrix: Matrix, name: str, metric: str, shading: Shading) -> str | TableCell:
    """Show a score in its colour, a dash where the method does not support the condition."""
    condition = Condition.parse(name)
    if condition in matrix.refused:
        return TableCell("–", title=matrix.refused[condition])
    result = matrix.results.get(condition)
    score = _score(result, metric)
    if result is None or score is None:
        return ""
    value = f"{score.value:.1f}" if abs(score.value) < 1000 else f"{score.value:.3g}"
    classes = [shading.classes(score.value), "z" if result.zero_shot else ""]
    return TableCell(value + (MARK if result.zero_shot else ""), " ".join(filter(None, classes)))


def _mean(matrix: Matrix, column: Column, *, zero_shot: bool | None) -> str:
    mean = matrix.mean(*column, zero_shot=zero_shot)
    return f"{mean:.1f}" if math.isfinite(mean) else ""


def _grid(name: str, matrix: Matrix, column: Column, shading: Shading) -> Table:
    """Show the directions of one run by one metric: source languages in rows, target languages in columns."""
    task, metric = column
    conditions = [c for c in (*matrix.results, *matrix.refused) if c.task == task]
    languages = dict.fromkeys(language for c in conditions for language in c.languages)
    sources, targets = (
        [lang for lang in languages if lang in {getattr(c, side) for c in conditions}] for side in ("source", "target")
    )
    rows: list[Row] = [
        [source, *(TableCell("", "same") if source == target
                   else _result(matrix, f"{task}/{source}/{target}", metric, shading) for target in targets)]
        for source in sources
    ]  # fmt: skip
    label = f"{task} {metric_title(metric)} of {name}, source language (row) to target language (column)"
    return Table(label, ["source ↓ target →", *targets], rows, classes=heat_classes(len(targets)))


def _listing(names: Sequence[str], matrices: Sequence[Matrix]) -> Table:
    """Show each score with its interval and corpus."""
    rows: list[Row] = []
    for name, matrix in zip(names, matrices, strict=True):
        for condition, result in matrix.results.items():
            for score in result.scores:
                fields = read_signature(score.signature)
                corpus = fields.get("corpus", ""), TableCell(fields.get("sha256", ""), "code"), f"{score.count:,}"
                mark = MARK if result.zero_shot else ""
                value = f"{score.value:.2f}{mark}"
                rows.append([f"{name} {condition}", metric_title(score.metric.name), value, _interval(score), *corpus])
    columns = ["run, condition", "metric", "score", "95 % interval", "corpus", "sha256", "sentences"]
    return Table("Each score with its interval and corpus", columns, rows)


def _interval(score: Score) -> str:
    if score.count < 2:
        return ""
    low, high = bootstrap_interval(score, 0)
    return f"{low:.2f} to {high:.2f}"
