"""Heat maps: translation scores by direction, scores with donated weights, similarity of weights."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.evaluate.directions import grid, is_translation
from polyloom.evaluate.matrix import Matrix
from polyloom.evaluate.transfer import Transfer
from polyloom.figures.bars import SITE_SERIES, draw_bars
from polyloom.figures.canvas import new_figure, printable, save, styled
from polyloom.figures.palette import CMAP, SOFT, STYLES
from polyloom.metrics.score import Array, metric_title

Probe = Mapping[str, Any]
Place = tuple[int, int]  # row and column
_READABLE = 25  # with more columns than this, numbers in cells cannot be read
_NAMED = 80  # with more rows than this, names cannot be read


@styled
def draw_directions(matrix: Matrix, path: Path, *, metric: str = "bleu") -> None:
    """Write the scores of all translation directions, source × target, to a file; zero-shot directions are framed.

    Args:
        matrix: Scores of translation.
        path: The file; its suffix is the format.
        metric: Which score.
    """
    languages, scores = grid(matrix, metric)
    untrained = {(c.source, c.target) for c, result in matrix.results.items() if is_translation(c) and result.zero_shot}
    zero_shot = [
        (row, column)
        for row, source in enumerate(languages)
        for column, target in enumerate(languages)
        if (source, target) in untrained
    ]
    figure = _sized(scores)
    ax = figure.subplots()
    limits = min(0.0, float(np.nanmin(scores))), max(1.0, float(np.nanmax(scores)))
    label = f"{metric_title(metric)}{', framed: zero-shot' if zero_shot else ''}"
    heat_map(ax, scores, names=(languages, languages), limits=limits, label=label)
    _frame_cells(ax, zero_shot)
    ax.set(xlabel="target", ylabel="source")
    save(figure, path, label=f"{metric_title(metric)} by direction")


@styled
def draw_transfer(table: Transfer, path: Path) -> None:
    """Write scores by source and target language to a file; targets with labelled data in training are framed.

    Args:
        table: The scores.
        path: The file; its suffix is the format.
    """
    trained = [
        (row, column)
        for row, source in enumerate(table.sources)
        for column, target in enumerate(table.targets)
        if not np.isnan(table.scores[row, column]) and (source, target) not in table.zero_shot
    ]
    figure = _sized(table.scores)
    ax = figure.subplots()
    label = f"{table.task} {metric_title(table.metric)}{', framed: not zero-shot' if trained else ''}"
    heat_map(ax, table.scores, names=(table.sources, table.targets), label=label)
    _frame_cells(ax, trained)
    ax.set(xlabel="target", ylabel="source")
    save(figure, path, label=f"{table.task} {metric_title(table.metric)} by source and target")


@styled
def draw_donors(probe: Probe, path: Path) -> None:
    """Write the scores of each language with each donor's weights to a file; a language's own weights are framed.

    Args:
        probe: The result of `donor_matrix`, with task and metric.
        path: The file; its suffix is the format.
    """
    scores = np.array([[np.nan if s is None else s for s in row] for row in probe["scores"]], dtype=np.float64)
    own = [(row, probe["donors"].index(name)) for row, name in enumerate(probe["own"]) if name in probe["donors"]]
    figure = _sized(scores)
    ax = figure.subplots()
    metric = metric_title(probe["metric"])
    heat_map(ax, scores, names=(probe["languages"], probe["donors"]), label=f"{metric}, framed: own weights")
    _frame_cells(ax, own)
    ax.set(xlabel="donor of the weights", ylabel=f"{probe['task']}: language of the text")
    save(figure, path, label=f"{probe['task']} {metric} with the weights of other languages")


@styled
def draw_weights(probe: Probe, path: Path) -> None:
    """Write the similarity of all conditions' weights, and their spread at each site, to a file.

    Args:
        probe: The result of `probe_weights`.
        path: The file; its suffix is the format.
    """
    similarity, names = np.array(probe["similarity"]), probe["conditions"]
    size = min(9.0, max(3.5, 0.25 * len(names)))
    figure = new_figure(size + 6.5, max(size + 0.5, 1.0 + 0.25 * len(probe["sites"])))
    left, right = figure.subplots(1, 2, width_ratios=(size + 1.5, 4))
    limits = min(0.0, float(similarity.min())), 1.0
    heat_map(left, similarity, names=(names, names), limits=limits, numbers=False, label="cosine similarity")
    left.set_xlabel(f"{len(names)} conditions")
    sites = probe["sites"]
    series = {label: [site[key] for site in sites] for key, label in SITE_SERIES.items()}
    draw_bars(right, [site["site"] for site in sites], series)
    right.set_xlabel("spread: distance from the mean / length of the mean")
    save(figure, path, label=f"Similarity of the weights of {len(names)} conditions")


def heat_map(
    ax: Any, values: Array, *, names: tuple[Sequence[str], Sequence[str]], label: str,
    limits: tuple[float, float] | None = None, numbers: bool = True,
) -> None:  # fmt: skip
    """Draw a matrix: a colour for each value, a dot where there is none.

    Args:
        ax: Where to draw.
        values: The matrix; nan where there is no value.
        names: Names of rows and of columns.
        label: What the colours mean.
        limits: Values of the darkest and the brightest colour; the lowest and the highest value by default.
        numbers: Whether to write values into cells, if there is room.
    """
    known = values[~np.isnan(values)]
    low, high = limits or ((float(known.min()), float(known.max())) if len(known) else (0.0, 1.0))
    high = high if high > low else low + 1.0  # equal values are no range of colours
    image = ax.imshow(values, cmap=CMAP, vmin=low, vmax=high)
    rows_without, columns_without = np.nonzero(np.isnan(values))
    ax.plot(columns_without, rows_without, ".", color=SOFT, ms=2)

    readable = values.shape[1] <= _READABLE
    digits = 0 if high >= 20 else 1  # low scores differ in the first decimal
    for (row, column), value in np.ndenumerate(values):
        if numbers and readable and not np.isnan(value):
            color = "white" if value < low + 0.55 * (high - low) else "black"
            ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=color, fontsize=8)

    # Columns are named above the matrix, where reading begins; long names are turned, or they would overlap.
    rows, columns = ([printable(name) for name in side] if len(side) <= _NAMED else [] for side in names)
    upright = not readable or max(map(len, columns), default=0) > 3
    ax.set_xticks(range(len(columns)), columns, rotation=90 if upright else 0)
    ax.set_yticks(range(len(rows)), rows)
    size = 8 if readable else 6
    ax.tick_params(length=0, labelsize=size, top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.xaxis.set_label_position("top")
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label=printable(label))


def _frame_cells(ax: Any, cells: Collection[Place]) -> None:
    """Draw a frame around cells of a matrix, a little inside of them, so that frames of neighbours stay apart."""
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - an extra

    for row, column in cells:
        ax.add_patch(Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, fill=False, ec=STYLES[1].color, lw=1.3))


def _sized(values: Array) -> Any:
    """Create a figure with room for a matrix."""
    unit = 0.42 if values.shape[1] <= _READABLE else 0.16
    return new_figure(unit * values.shape[1] + 2.6, unit * values.shape[0] + 1.2)
