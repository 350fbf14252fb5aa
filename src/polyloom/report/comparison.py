"""Two runs and more: differences from the first one, with paired intervals."""

import math
from collections.abc import Sequence

from polyloom.errors import PolyloomError
from polyloom.evaluate.comparison import LEVEL, Comparison, Difference, compare
from polyloom.report.html import Markup, figure, header_row, joined, made_by, note, row, section, table, tag
from polyloom.report.plots import forest_axis, forest_row
from polyloom.report.sources import Source


def comparison_section(sources: Sequence[Source]) -> Markup | None:
    """Every further run against the first; nothing for a single one."""
    if len(sources) < 2:
        return None
    first, *others = sources
    parts = [part for other in others for part in _against(first, other)]
    intro = tag(
        "p", "Differences on the sentences that both runs were scored on, with 95 % intervals by a paired bootstrap. "
        "A filled square is a difference that remains after correction for the number of cells (Holm, p < 0.05); "
        "a hollow one was not shown to be more than chance.",
    )  # fmt: skip
    return section("comparison", "Comparison", intro, *parts)


def _against(first: Source, other: Source) -> list[Markup]:
    title = tag("h3", f"{other.name} − {first.name}")
    if first.matrix is None or other.matrix is None:
        unscored = next(source for source in (first, other) if source.matrix is None)
        return [title, note(f"{unscored.name} has no scores. Make them: {unscored.evaluation}")]
    try:
        compared = compare(other.matrix, first.matrix)
    except PolyloomError as error:
        return [title, note(str(error))]
    on = "" if first.split == "test" else f" --on {first.split}"
    line = f"polyloom compare {other.shell} {first.shell}{on}"
    keys = compared.means()
    drawn = [_forest(compared, key, names=(other.name, first.name), line=line) for key in keys]
    only = [
        note(f"Only {name} was scored on: {', '.join(map(str, conditions))}.")
        for name, conditions in ((other.name, compared.only_a), (first.name, compared.only_b))
        if conditions
    ]
    return [title, *drawn, *only]


def _forest(compared: Comparison, key: tuple[str, str], *, names: tuple[str, str], line: str) -> Markup:
    """The differences of one task by one metric, from the best for the further run to the worst."""
    task, metric = key
    found = [one for one in compared.differences if (one.condition.task, one.metric) == key]
    sign = 1 if found[0].higher_is_better else -1
    found.sort(key=lambda one: sign * (one.b - one.a))
    limits = _limits(found)
    rows = [
        row(
            "/".join(one.condition.languages), f"{one.a:.1f}", f"{one.b:.1f}", _signed(one.a - one.b),
            f"{_signed(one.interval[0])} to {_signed(one.interval[1])}",
            _drawn(one, limits),
            f"{one.corrected:.3f}", one.verdict,
        )
        for one in found
    ]  # fmt: skip
    a, b = compared.means()[key]
    foot = row(
        "mean", f"{a:.1f}", f"{b:.1f}", _signed(a - b), "", tag("td", forest_axis(limits), class_="plot"), "", ""
    )
    head = header_row("language", *names, "difference", "95 % interval", "drawn", "p (Holm)", f"{names[0]} is")
    better = "to the right of zero" if sign > 0 else "to the left of zero (less is better)"
    label = f"{task} {metric}: {names[0]} minus {names[1]}"
    caption = joined([f"{label}; {names[0]} is better {better}. ", made_by(line)])
    return figure(table(label, head, rows, foot=foot, class_="forest"), caption=caption)


def _drawn(one: Difference, limits: tuple[float, float]) -> Markup:
    sure = one.corrected < LEVEL
    return tag("td", forest_row(one.a - one.b, *one.interval, limits=limits, sure=sure), class_="plot")


def _limits(found: Sequence[Difference]) -> tuple[float, float]:
    ends = [end for one in found for end in (*one.interval, one.a - one.b) if math.isfinite(end)]
    low, high = min([*ends, 0.0]), max([*ends, 0.0])
    return (low, high) if high > low else (-1.0, 1.0)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
