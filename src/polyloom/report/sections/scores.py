"""Scores: languages by tasks, grids of translation directions, each score with its interval and corpus."""

import math
from collections.abc import Sequence
from typing import Any

from polyloom.conditions import Condition
from polyloom.evaluate.matrix import MARK, Cell, Column, Matrix, score_table
from polyloom.figures.palette import SCALE
from polyloom.metrics.score import metric_title, read_signature
from polyloom.metrics.significance import bootstrap_interval
from polyloom.report.elements import Row, Section, Shading, Table, TableCell, heat_classes
from polyloom.report.sources import Source

LISTED = 400  # more scores than this are not listed one by one


def scores_section(sources: Sequence[Source]) -> Section:
    """Build the section on scores."""
    scored = [(source, source.matrix) for source in sources if source.matrix]
    names, matrices = [source.name for source, _ in scored], [matrix for _, matrix in scored]
    data: dict[str, Any] = {
        "notes": [source.missing["scores"] for source in sources if "scores" in source.missing],
        "mark": MARK,
        "steps": range(len(SCALE)),
        "commands": [source.evaluation for source, _ in scored],
        "refused": [(s.name, c, reason) for s, matrix in scored for c, reason in matrix.refused.items()],
        "heat_map": None, "grids": [], "listing": None, "unlisted": 0,
    }  # fmt: skip
    plain = []  # columns of the table of languages by tasks
    for column in dict.fromkeys(column for matrix in matrices for column in matrix.metrics()):
        task, metric = column
        conditions = [c for matrix in matrices for c in (*matrix.results, *matrix.refused) if c.task == task]
        scores = [matrix.cell(c, metric).score for matrix in matrices for c in matrix.results if c.task == task]
        # One scale for all runs, so that a colour means the same score in each of their tables.
        shading = Shading([score.value for score in scores if score], metric)
        # Directions between several languages on both sides are easier to read as sources by targets.
        sources_, targets = {c.source for c in conditions}, {c.target for c in conditions}
        if None not in targets and len(sources_) > 1 and len(targets) > 1:
            data["grids"] += [
                (_grid(s.name, matrix, column, shading), matrix.mean(*column), s.evaluation) for s, matrix in scored
            ]
        else:
            plain.append((column, shading))
    data["heat_map"] = _heat_map(names, matrices, plain) if plain else None
    count = sum(len(result.scores) for matrix in matrices for result in matrix.results.values())
    if count > LISTED:
        data["unlisted"] = count
    elif scored:
        data["listing"] = _listing(names, matrices)
    return Section("scores", "Scores", data)


def _heat_map(names: Sequence[str], matrices: Sequence[Matrix], columns: Sequence[tuple[Column, Shading]]) -> Table:
    """Show languages by tasks, the runs side by side within each task."""
    table = score_table(matrices, [column for column, _ in columns])
    rows: list[Row] = []
    for language, cells in zip(table.rows, table.cells, strict=True):
        row: list[str | TableCell] = [language]
        for (_, shading), cells_of_runs in zip(columns, cells, strict=True):
            row += [_cell(cell, shading) for cell in cells_of_runs]
        rows.append(row)
    foot: list[Row] = []
    for name, means in table.means:
        means_row = [name]
        for means_of_runs in means:
            means_row += [f"{mean:.1f}" if math.isfinite(mean) else "" for mean in means_of_runs]
        foot.append(means_row)
    heads = [f"{task} {metric_title(metric)}" for task, metric in table.columns]
    label = "Scores by language and task"
    if len(matrices) == 1:
        return Table(label, ["language", *heads], rows, foot, "heat")
    runs = [name for _ in heads for name in names]
    return Table(label, ["language", *runs], rows, foot, "heat", [(head, len(matrices)) for head in heads])


def _grid(name: str, matrix: Matrix, column: Column, shading: Shading) -> Table:
    """Show the directions of one run by one metric: source languages in rows, target languages in columns."""
    task, metric = column
    conditions = [c for c in (*matrix.results, *matrix.refused) if c.task == task]
    # Rows and columns have languages in the same order, that of the conditions.
    languages = dict.fromkeys(language for c in conditions for language in c.languages)
    sources, targets = {c.source for c in conditions}, {c.target for c in conditions}
    columns = [language for language in languages if language in targets]
    rows: list[Row] = []
    for source in languages:
        if source in sources:
            row: list[str | TableCell] = [source]
            for target in columns:
                if source == target:
                    row.append(TableCell("", "same"))
                else:
                    row.append(_cell(matrix.cell(Condition(task, source, target), metric), shading))
            rows.append(row)
    label = f"{task} {metric_title(metric)} of {name}, source language (row) to target language (column)"
    return Table(label, ["source ↓ target →", *columns], rows, classes=heat_classes(len(columns)))


def _cell(cell: Cell, shading: Shading) -> str | TableCell:
    """Show a score in its colour, a dash where the method does not support the condition."""
    if cell.score is None:
        return "" if cell.refusal is None else TableCell("–", title=cell.refusal)
    value = cell.score.value
    text = f"{value:.1f}" if abs(value) < 1000 else f"{value:.3g}"
    classes = [shading.classes(value), "z" if cell.zero_shot else ""]
    return TableCell(text + (MARK if cell.zero_shot else ""), " ".join(filter(None, classes)))


def _listing(names: Sequence[str], matrices: Sequence[Matrix]) -> Table:
    """Show each score with its interval and corpus."""
    rows: list[Row] = []
    for name, matrix in zip(names, matrices, strict=True):
        for condition, result in matrix.results.items():
            for score in result.scores:
                fields = read_signature(score.signature)
                # Fewer than two sentences cannot be resampled.
                interval = "{:.2f} to {:.2f}".format(*bootstrap_interval(score, 0)) if score.count > 1 else ""
                rows.append([
                    f"{name} {condition}", metric_title(score.metric.name), Cell(score, result.zero_shot).text(),
                    interval, fields.get("corpus", ""), TableCell(fields.get("sha256", ""), "code"), f"{score.count:,}",
                ])  # fmt: skip
    columns = ["run, condition", "metric", "score", "95 % interval", "corpus", "sha256", "sentences"]
    return Table("Each score with its interval and corpus", columns, rows)
