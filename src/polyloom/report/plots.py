"""Charts as inline SVG: lines over steps, and bars and intervals that stand in the rows of tables.

Colours are classes of the style sheet, so that they follow the reader's choice of light or dark. What they tell apart
is told by dashes, shapes or words too.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyloom.report.html import Markup, tag

STYLES = 6  # classes c0, c1, … of lines and markers; nobody can tell more apart
Point = tuple[float, float]
_WIDTH, _HEIGHT = 320, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 26


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        points: Where it goes.
        style: Its colour and dashes.
        band: Around it, ``(x, low, high)``.
        marked: Points that stand out.
    """

    points: Sequence[Point]
    style: int = 0
    band: Sequence[tuple[float, float, float]] = ()
    marked: Sequence[Point] = ()


def svg(*children: object, size: tuple[float, float], label: str, class_: str | None = None) -> Markup:
    """A drawing with what it shows in words."""
    width, height = size
    box = f"0 0 {width:.0f} {height:.0f}"
    title = tag("title", label)
    return tag("svg", title, *children, viewBox=box, width=width, height=height, role="img", class_=class_)


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Round numbers between two others."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A number on an axis."""
    text = f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.4g}"
    return text.replace("-", "−")


def chart(lines: Sequence[Line], *, label: str, end: float, borders: Sequence[float] = (), log: bool = False) -> Markup:
    """Lines from step 0 to `end`; `borders` are steps at which a stage ends, `log` is of the vertical axis."""
    across, up, heights = _axes(lines, end, log=log)
    drawn: list[Markup] = []
    for y in heights:
        drawn.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=up(y), y2=up(y), class_="grid"))
        drawn.append(tag("text", number(y), x=_LEFT - 5, y=up(y) + 4, class_="end"))
    steps = ticks(0, end, most=4)
    drawn += [tag("text", number(x), x=across(x), y=_HEIGHT - 8, class_="middle") for x in steps]
    drawn += [tag("line", x1=across(x), x2=across(x), y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="border") for x in borders]
    for line in lines:
        if line.band:
            edge = [(x, high) for x, _, high in line.band] + [(x, low) for x, low, _ in reversed(line.band)]
            drawn.append(tag("path", d=_path(edge, across, up) + "Z", class_=f"band c{line.style}"))
    for line in lines:
        drawn.append(tag("path", d=_path(line.points, across, up), class_=f"line c{line.style}"))
        drawn += [tag("circle", cx=across(x), cy=up(y), r=4, class_=f"ring c{line.style}") for x, y in line.marked]
    return svg(*drawn, size=(_WIDTH, _HEIGHT), label=label, class_="chart")


def _axes(
    lines: Sequence[Line], end: float, *, log: bool
) -> tuple[Callable[[float], float], Callable[[float], float], list[float]]:
    """Where a step and a value lie, and the values that are written beside the axis."""
    values = [y for line in lines for _, y in line.points] + [y for line in lines for b in line.band for y in b[1:]]
    low, high = min(values), max(values)
    log = log and low > 0
    if log:
        low, high = math.log(low), math.log(high)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5

    def across(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / end

    def up(y: float) -> float:
        share = ((math.log(y) if log else y) - low) / (high - low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    if not log:
        return across, up, ticks(low, high, most=4)
    powers = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1)
    round_numbers = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    inside = [y for y in round_numbers if low <= math.log(y) <= high]
    return across, up, inside if len(inside) > 1 else [math.exp(low), math.exp(high)]


def _path(points: Sequence[Point], across: Callable[[float], float], up: Callable[[float], float]) -> str:
    return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in points)


def legend(names: Sequence[str]) -> Markup | None:
    """What lines of which style mean, where there is more than one."""
    if len(names) < 2:
        return None
    samples = (
        tag("svg", tag("path", d="M0 6H34", class_=f"line c{i % STYLES}"), width=34, height=12, aria_hidden="true")
        for i in range(len(names))
    )
    return tag("ul", *(tag("li", s, " ", name) for s, name in zip(samples, names, strict=True)), class_="legend")


def thinned(points: Sequence[Point], *, most: int = 80) -> list[Point]:
    """Means over neighbours, so that a long run makes no long page."""
    size = max(1, math.ceil(len(points) / most))
    groups = (points[i : i + size] for i in range(0, len(points), size))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def pair_bar(of_data: float, of_draws: float, *, most: float) -> Markup:
    """Two shares, one above the other: outlined what there is, filled what is taken."""
    width = 120
    outlined, filled = (max(1.0, width * share / most) if share else 0.0 for share in (of_data, of_draws))
    bars = (
        tag("rect", x=0.5, y=1.5, width=outlined, height=6, class_="outlined"),
        tag("rect", x=0.5, y=10.5, width=filled, height=6, class_="filled"),
    )
    return tag("svg", *bars, viewBox=f"0 0 {width + 2} 18", width=width + 2, height=18, aria_hidden="true")


def bar(share: float) -> Markup:
    """A share of a whole."""
    frame = tag("rect", x=0.5, y=3.5, width=100, height=10, class_="outlined")
    filled = tag("rect", x=0.5, y=3.5, width=max(1.0, 100 * share) if share else 0.0, height=10, class_="filled")
    return tag("svg", filled, frame, viewBox="0 0 102 18", width=102, height=18, aria_hidden="true")


FOREST = 220  # width of an interval's drawing


def forest_row(value: float, low: float, high: float, *, limits: tuple[float, float], sure: bool) -> Markup:
    """A difference and its interval beside zero; filled if it is more than chance, hollow if that was not shown."""
    x, left, right, zero = (forest_place(v, limits) for v in (value, low, high, 0.0))
    parts = (
        tag("line", x1=zero, x2=zero, y1=0, y2=24, class_="axis"),
        tag("line", x1=left, x2=right, y1=12, y2=12, class_="whisker"),
        tag("rect", x=x - 4, y=8, width=8, height=8, class_="filled" if sure else "hollow"),
    )
    return tag("svg", *parts, viewBox=f"0 0 {FOREST} 24", width=FOREST, height=24, aria_hidden="true")


def forest_axis(limits: tuple[float, float]) -> Markup:
    """The numbers under (or over) a column of intervals."""
    marks = [
        tag("text", f"{v:+g}".replace("-", "−") if v else "0", x=forest_place(v, limits), y=14, class_="middle")
        for v in ticks(*limits, most=4)
    ]
    return tag("svg", *marks, viewBox=f"0 0 {FOREST} 18", width=FOREST, height=18, aria_hidden="true")


def forest_place(value: float, limits: tuple[float, float]) -> float:
    """Where a difference lies."""
    low, high = limits
    return 14 + (FOREST - 28) * (min(high, max(low, value)) - low) / (high - low)
