"""Curves: losses and validation scores over steps, spectra of a hypernetwork."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.figures.canvas import new_figure, save, styled
from polyloom.figures.palette import PAPER, SOFT, STYLES, series_style

Point = tuple[float, float]
_WIDTH, _HEIGHT = 3.4, 2.1  # as wide as a phone


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        points: Steps and values.
        series: Number of its style.
        band: Around it, as ``(step, low, high)``.
        marked: Points with a ring.
    """

    points: Sequence[Point]
    series: int = 0
    band: Sequence[tuple[float, float, float]] = ()
    marked: Sequence[Point] = ()


@styled
def curve_figure(
    curves: Sequence[Curve], *, label: str, end: float, borders: Sequence[float] = (), log: bool = False
) -> Any:
    """Draw curves from step 0 on.

    Args:
        curves: What to draw.
        label: What the vertical axis shows, with the unit.
        end: The last step.
        borders: Steps at which a training stage ends.
        log: Whether the vertical axis is logarithmic, if all values are positive.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter  # noqa: PLC0415 - an extra

    figure = new_figure(_WIDTH, _HEIGHT)
    ax = figure.subplots()
    for border in borders:
        ax.axvline(border, color=SOFT, lw=0.8, ls=(0, (2, 3)), zorder=0)
    values = [y for curve in curves for _, y in curve.points] + [y for c in curves for b in c.band for y in b[1:]]
    for curve in curves:
        style = series_style(curve.series)
        if curve.band:
            ax.fill_between(*zip(*curve.band, strict=True), color=style.color, alpha=0.16, lw=0)
        alone = style.marker if len(curve.points) == 1 else None
        ax.plot(*zip(*curve.points, strict=True), color=style.color, ls=style.dashes, lw=1.5, marker=alone, ms=4)
        for x, y in curve.marked:
            ax.plot(x, y, "o", ms=6, mfc=PAPER, mec=style.color, mew=1.8, clip_on=False)
    ax.grid(axis="y", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    if log and min(values) > 0:
        ax.set_yscale("log")
        # Over few decades, powers of ten alone would leave the axis almost without numbers.
        decades = math.log10(max(values) / min(values))
        subs = (1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(float(n) for n in range(1, 10))
        ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=8))
        ax.yaxis.set_minor_formatter(NullFormatter())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    ax.set_xlim(0, end)
    ax.set(xlabel="step", ylabel=label)
    return figure


@styled
def line_sample(series: int) -> Any:
    """Draw a short segment of a series' line, for a legend."""
    style = series_style(series)
    figure = new_figure(0.36, 0.12)
    figure.set_layout_engine("none")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.plot([0, 1], [0, 0], color=style.color, ls=style.dashes, lw=1.5)
    ax.set_axis_off()
    return figure


def short_number(value: float) -> str:
    """Write a number for an axis."""
    text = f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.4g}"
    return text.replace("-", "−")


def thinned(points: Sequence[Point], *, most: int = 80) -> list[Point]:
    """Replace neighbouring points by their mean until at most so many are left."""
    size = max(1, math.ceil(len(points) / most))
    groups = (points[i : i + size] for i in range(0, len(points), size))
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


@styled
def draw_capacity(probe: Mapping[str, Any], path: Path) -> None:
    """Write the spectra of language embeddings and of the inputs of the output projections to a file.

    Args:
        probe: The result of `probe_capacity`.
        path: The file; its suffix is the format.
    """
    figure = new_figure(6.5, 4)
    ax = figure.subplots()
    lines = (
        ("embeddings", "language embeddings", "participation_ratio", STYLES[0]),
        ("read", "inputs of the output projections", "effective_rank", STYLES[1]),
    )
    for key, name, number, style in lines:
        part = probe[key]
        shares = np.array([share for share in part["spectrum"] if share > 0])  # 0 has no place on a logarithmic axis
        label = f"{name}: {part[number]:.1f} of {part['width']}"
        ax.plot(np.arange(1, len(shares) + 1), shares, marker=style.marker, ms=4, lw=1, color=style.color, label=label)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: short_number(value))
    ax.yaxis.set_minor_formatter(lambda *_: "")
    ax.set(xlabel="direction", ylabel="share of the variance")
    ax.legend()
    save(figure, path, label="Spectra of the hypernetwork")
