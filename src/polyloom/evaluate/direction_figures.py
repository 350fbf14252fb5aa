"""Figures of translation scores: means by group of directions, and every direction, source × target."""

from pathlib import Path
from typing import Any

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.evaluate.directions import KINDS, Resources, grid, groups, is_translation, values
from polyloom.evaluate.matrix import MARK, Matrix
from polyloom.metrics.score import Array

_COLORS = dict(zip(KINDS, ("#0072b2", "#d55e00", "#009e73"), strict=True))  # that everyone can tell apart
_NUMBERS = 25  # languages beyond which cells are too many to be read one by one
_TITLES = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "comet": "COMET"}


def draw_groups(matrix: Matrix, path: Path, *, metric: str = "bleu", resources: Resources | None = None) -> None:
    """A bar per group of directions for the mean, and a point for every direction.

    Args:
        matrix: Scores of translation.
        path: Where to write; the suffix says the format.
        metric: Which score.
        resources: Adds a bar for every level.
    """
    grid(matrix, metric)  # refuses a metric that is not there
    scores = {name: values(matrix, chosen, metric) for name, chosen in groups(matrix, resources).items()}
    scores = {name: some for name, some in scores.items() if some}
    figure, ax = _axes(6.5, 1.0 + 0.3 * len(scores))
    for place, (name, some) in enumerate(scores.items()):
        kind, _, level = name.partition(" ")
        style = {"color": _COLORS[kind.removesuffix(MARK)], "alpha": 0.4 if level else 0.8}
        ax.barh(place, np.mean(some), height=0.75, lw=0, **style)
        spread = np.linspace(-0.2, 0.2, len(some)) if len(some) > 1 else [0.0]
        ax.plot(some, np.add(place, spread), "o", color="white", mec="#222222", mew=0.6, ms=3)
        ax.text(1.01, place, f"{np.mean(some):.1f}", va="center", transform=ax.get_yaxis_transform())
    names = [f"   {name.partition(' ')[2]}" if " " in name else name for name in scores]
    ax.set_yticks(
        range(len(scores)), [f"{name} ({len(some)})" for name, some in zip(names, scores.values(), strict=True)]
    )
    ax.invert_yaxis()
    lowest, highest = _range(np.concatenate([*scores.values()]))
    ax.set_xlim(1.03 * lowest, 1.03 * highest)
    note = f"   {MARK} zero-shot" if any(MARK in name for name in scores) else ""
    ax.set_xlabel(f"{_title(metric)}: directions (their number) and their mean{note}")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def draw_grid(matrix: Matrix, path: Path, *, metric: str = "bleu") -> None:
    """Every direction as a cell, source × target; a frame says zero-shot, a dot that there is no score.

    Args:
        matrix: Scores of translation.
        path: Where to write; the suffix says the format.
        metric: Which score.
    """
    languages, scores = grid(matrix, metric)
    numbers = len(languages) <= _NUMBERS
    size = (0.42 if numbers else 0.16) * len(languages)
    figure, ax = _axes(size + 2.0, size + 0.8)
    lowest, highest = _range(scores)
    image = ax.imshow(scores, cmap="cividis", vmin=lowest, vmax=highest)
    ax.plot(*np.argwhere(np.isnan(scores)).T[::-1], ".", color="#cccccc", ms=2)
    zero_shot = {(c.source, c.target) for c, result in matrix.results.items() if result.zero_shot and is_translation(c)}
    for (row, column), score in np.ndenumerate(scores):
        if np.isnan(score):
            continue
        if (languages[row], languages[column]) in zero_shot:
            ax.add_patch(_frame(column, row))
        if numbers:
            color = "white" if score < lowest + 0.55 * (highest - lowest) else "black"
            ax.text(column, row, f"{score:.0f}", ha="center", va="center", color=color, fontsize=8)
    ax.set_xticks(range(len(languages)), languages, rotation=0 if max(map(len, languages)) < 4 and numbers else 90)
    ax.set_yticks(range(len(languages)), languages)
    ax.tick_params(length=0, labelsize=8 if numbers else 6, top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("target")
    ax.set_ylabel("source")
    ax.spines[:].set_visible(False)
    note = ", framed: zero-shot" if zero_shot else ""
    figure.colorbar(image, ax=ax, shrink=0.8, label=f"{_title(metric)}{note}")
    figure.savefig(path, dpi=150)


def _range(scores: Array) -> tuple[float, float]:
    """From zero, or what lies below it (COMET can), to the highest score, or one where nothing was learnt."""
    return min(0.0, float(np.nanmin(scores))), max(1.0, float(np.nanmax(scores)))


def _title(metric: str) -> str:
    return _TITLES.get(metric, metric)


def _axes(width: float, height: float) -> tuple[Any, Any]:
    """A figure of its own, so that neither the backend nor the settings of the caller's figures matter or change."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise PolyloomError(
            "figures: the package matplotlib is not installed. pip install 'polyloom[plots]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    return Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, fill=False, ec="#d55e00", lw=1.2)
