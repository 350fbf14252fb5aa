"""The forest plot: differences between two runs with their intervals."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from polyloom.figures.canvas import new_figure, printable, styled
from polyloom.figures.palette import PAPER, SOFT, STYLES


class Interval(NamedTuple):
    """A difference with its interval.

    Attributes:
        name: What was compared.
        value: The difference.
        low: Lower end of the interval.
        high: Upper end of the interval.
        significant: Whether it is significant; then its marker is filled.
    """

    name: str
    value: float
    low: float
    high: float
    significant: bool


@styled
def forest_figure(intervals: Sequence[Interval], *, label: str) -> Any:
    """Draw one interval per row, from the top, beside a line at zero."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - an extra

    figure = new_figure(3.4, 0.7 + 0.24 * len(intervals))
    ax = figure.subplots()
    ax.axvline(0, color=SOFT, lw=1, zorder=1)
    style = STYLES[0]
    for row, interval in enumerate(intervals):
        # A bound may be NaN, if resamples had no unit of the metric; then the difference is drawn alone.
        if math.isfinite(interval.low) and math.isfinite(interval.high):
            ax.plot([interval.low, interval.high], [row, row], color=style.color, lw=1.6, zorder=2)
        fill = style.color if interval.significant else PAPER
        ax.plot(interval.value, row, "s", ms=5.5, mfc=fill, mec=style.color, mew=1.5, zorder=3)
    ax.set_yticks(range(len(intervals)), [printable(interval.name) for interval in intervals])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(intervals) - 0.4, -0.6)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
    ax.set_xlabel(label)
    ax.spines["left"].set_visible(False)
    return figure
