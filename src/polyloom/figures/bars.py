"""Bars: translation scores by group of directions, spread of weights by site, shares of a mixture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.evaluate.directions import KINDS, Resources, groups, require_metric, values
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.figures.canvas import new_figure, printable, save, styled
from polyloom.figures.palette import INK, PAPER, STYLES, series_style
from polyloom.metrics.score import metric_title

SITE_SERIES = {"between_languages": "between languages", "between_tasks": "between tasks"}
_KINDS = dict(zip(KINDS, STYLES, strict=False))


@styled
def draw_groups(matrix: Matrix, path: Path, *, metric: str = "bleu", resources: Resources | None = None) -> None:
    """Write mean translation scores by group of directions to a file, with a point for each direction.

    Args:
        matrix: Scores of translation.
        path: The file; its suffix is the format.
        metric: Which score.
        resources: Adds a bar for each level of training data.
    """
    require_metric(matrix, metric)
    scores = {name: values(matrix, members, metric) for name, members in groups(matrix, resources).items()}
    scores = {name: group for name, group in scores.items() if group}
    figure = new_figure(6.5, 1.0 + 0.3 * len(scores))
    ax = figure.subplots()
    for place, (name, group) in enumerate(scores.items()):
        # A group is called "En→X", "En→X⁰" if it is zero-shot, or "En→X high" for a level of training data. All groups
        # of a kind have one colour; levels are paler, as they are parts of the group above them.
        kind, _, level = name.partition(" ")
        color = _KINDS[kind.removesuffix(MARK)].color
        ax.barh(place, np.mean(group), height=0.75, lw=0, color=color, alpha=0.4 if level else 0.8)
        # Points are spread over the height of the bar, so that equal scores do not hide one another.
        spread = np.linspace(-0.2, 0.2, len(group)) if len(group) > 1 else [0.0]
        ax.plot(group, np.add(place, spread), "o", color=PAPER, mec=INK, mew=0.6, ms=3)
        ax.text(1.01, place, f"{np.mean(group):.1f}", va="center", transform=ax.get_yaxis_transform())
    names = [f"   {name.partition(' ')[2]}" if " " in name else name for name in scores]
    labels = [f"{name} ({len(group)})" for name, group in zip(names, scores.values(), strict=True)]
    ax.set_yticks(range(len(scores)), labels)
    ax.invert_yaxis()
    every_score = np.concatenate([*scores.values()])
    ax.set_xlim(1.03 * min(0.0, float(every_score.min())), 1.03 * max(1.0, float(every_score.max())))
    note = f"   {MARK} zero-shot" if any(MARK in name for name in scores) else ""
    ax.set_xlabel(f"{metric_title(metric)}: mean of each group and its directions{note}")
    save(figure, path, label=f"{metric_title(metric)} by group of directions")


@styled
def bar_figure(names: Sequence[str], series: Mapping[str, Sequence[float | None]], *, label: str) -> Any:
    """Draw horizontal bars: one group of bars per name, one bar in it per series."""
    figure = new_figure(3.4, 0.9 + 0.26 * len(names))
    ax = figure.subplots()
    draw_bars(ax, names, series)
    ax.set_xlabel(label)
    return figure


def draw_bars(ax: Any, names: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> None:
    """Draw bars on axes; a series without any value is left out."""
    drawn = {label: numbers for label, numbers in series.items() if any(number is not None for number in numbers)}
    places = np.arange(len(names))
    height = 0.8 / max(1, len(drawn))
    for number, (label, values_or_none) in enumerate(drawn.items()):
        style = series_style(number)
        lengths = [np.nan if value is None else value for value in values_or_none]
        at = places + height * (number - (len(drawn) - 1) / 2)  # the bars of a name are centred at its place
        ax.barh(at, lengths, height=0.9 * height, color=style.color, alpha=0.5, lw=0)
        ax.plot(lengths, at, style.marker, color=style.color, mec=INK, mew=0.5, ms=5, label=label, clip_on=False)
    ax.set_yticks(places, [printable(name) for name in names], fontsize=8)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(left=0)
    if len(drawn) > 1:
        ax.figure.legend(loc="outside upper right", ncols=len(drawn))
