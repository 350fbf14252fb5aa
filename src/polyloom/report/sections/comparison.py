"""The comparison: differences of each condition, with paired intervals, as `polyloom compare` computes them."""

from collections.abc import Sequence
from typing import Any

from polyloom.errors import PolyloomError
from polyloom.evaluate.comparison import Comparison, compare
from polyloom.figures.forest import Interval, forest_figure
from polyloom.metrics.score import metric_title
from polyloom.metrics.significance import LEVEL
from polyloom.report.elements import Row, Section, Table, TableCell, inline, interval, joined_with_and, p_value, signed
from polyloom.report.sources import Source

Compared = Comparison | str  # or why there is none


def compare_sources(first: Source, other: Source) -> Compared:
    """Compare two runs, or say why that is impossible."""
    unscored = [source for source in (first, other) if source.matrix is None]
    if first.matrix is None or other.matrix is None:
        names = joined_with_and([source.name for source in unscored])
        return f"no scores of {names} yet. Run: {'; '.join(source.evaluation for source in unscored)}"
    try:
        return compare(first.matrix, other.matrix)
    except PolyloomError as error:
        return str(error)


def comparison_section(sources: Sequence[Source], compared: Sequence[Compared]) -> Section | None:
    """Build the comparison of the first run with each further one; ``None`` for a single run.

    Args:
        sources: The runs.
        compared: The results of `compare_sources`, for each further run.
    """
    first, *others = sources
    split = "" if first.split == "test" else f" --split {first.split}"
    pairs = []
    for other, result in zip(others, compared, strict=True):
        names, notes, parts = (first.name, other.name), [], []
        if isinstance(result, str):
            notes.append(f"No comparison: {result}")
        else:
            for name, conditions in zip(names, (result.only_a, result.only_b), strict=True):
                if conditions:
                    notes.append(f"Only {name} was scored on: {', '.join(map(str, conditions))}.")
            parts = [_part(result, key, names=names) for key in result.means()]
        command = f"polyloom compare {first.shell} {other.shell}{split}"
        pairs.append({"a": first.name, "b": other.name, "command": command, "notes": notes, "parts": parts})
    return Section("comparison", "Comparison", {"pairs": pairs}) if pairs else None


def _part(comparison: Comparison, key: tuple[str, str], *, names: tuple[str, str]) -> dict[str, Any]:
    """Show the differences of one task by one metric, from the best for the first run to the worst."""
    task, metric = key[0], metric_title(key[1])
    differences = [d for d in comparison.differences if (d.condition.task, d.metric) == key]
    higher = differences[0].higher_is_better
    differences.sort(key=lambda d: d.a - d.b, reverse=higher)
    intervals: list[Interval] = []
    rows: list[Row] = []
    for d in differences:
        language = "/".join(d.condition.languages)
        intervals.append(Interval(language, d.a - d.b, *d.interval, significant=d.corrected < LEVEL))
        value = TableCell(signed(d.a - d.b), "interval", note=interval(*d.interval))
        verdict = d.verdict if d.corrected < LEVEL else "–"
        rows.append([language, f"{d.a:.1f}", f"{d.b:.1f}", value, p_value(d.corrected).removeprefix("= "), verdict])

    a, b = comparison.means()[key]
    label = f"{task} {metric}: {names[0]} minus {names[1]}"
    columns = ("language", "A", "B", "A − B (95 % interval)", "p (Holm)", "A is")
    foot = [["mean", f"{a:.1f}", f"{b:.1f}", signed(a - b), "", ""]]
    better = "right" if higher else "left"
    return {
        "title": f"{task}, {metric}",
        "better": f"A is better to the {better} of zero" + ("" if higher else " (lower is better)"),
        "table": Table(label, columns, rows, foot, "numbers forest"),
        "svg": inline(forest_figure(intervals, label=f"A − B, {metric}"), label=f"Forest plot of {label}"),
    }
