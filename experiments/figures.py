"""Figures of the result pages."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from experiments.comparison import UnfairError
from experiments.read import results
from experiments.tables import translation
from polyloom.probe.projection import flat_map

mpl.use("agg")
import matplotlib.pyplot as plt

GROUPS = {
    "romance": ("#d55e00", "o"),
    "germanic": ("#0072b2", "s"),
    "slavic": ("#009e73", "^"),
    "turkic": ("#cc79a7", "D"),
}


def draw_figures(folder: Path) -> None:
    """Draw all figures whose results are there and can be compared."""
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        for name, (draw, table) in FIGURES.items():
            try:
                for build in table().values():
                    build()
                figure = draw()
            except (KeyError, UnfairError):  # the page says so
                continue
            figure.savefig(folder / f"results-{name}.png", dpi=150, metadata={"Software": None})
            plt.close(figure)


def _rescaling() -> Any:
    """Plot loss over steps by width, with and without rescaling."""
    widths = list(dict.fromkeys(size for size, _ in translation.RESCALED.values()))
    figure, axes = plt.subplots(1, len(widths), figsize=(7, 3), layout="constrained", sharey=True)
    for name, (size, label) in translation.RESCALED.items():
        row, ax = results("mt-analysis")[name], axes[widths.index(size)]
        curve, every = translation.losses(row)[0], row.runs[0]["recipe"]["train"]["evaluate_every"]
        color = {"off": "#d55e00", "on": "#0072b2"}[label]
        ax.plot(every * np.arange(1, len(curve) + 1), curve, color=color, marker="o", ms=3, lw=1, label=label)
        ax.set(title=f"d_h = {size}", xlabel="steps")
    axes[0].set_ylabel("validation loss, nats per token")
    axes[0].legend(frameon=False, title="rescaling")
    return figure


def _embeddings() -> Any:
    """Plot the first two principal components of the normalised language embeddings."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    for ax, name in zip(axes, translation.GENERATED, strict=True):
        vectors = results("mt-table")[name].runs[0]["embeddings"]
        table = np.array(list(vectors.values()))
        table /= np.linalg.norm(table, axis=1, keepdims=True)
        for (x, y), language in zip(flat_map(table), vectors, strict=True):
            color, marker = GROUPS[translation.GROUP[language]]
            ax.plot(x, y, marker, color=color, ms=5)
            ax.annotate(language, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
        ax.set(title=name, xticks=[], yticks=[])
    for label, (color, marker) in GROUPS.items():
        axes[0].plot([], [], marker, color=color, label=label)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


FIGURES = {  # each with the table of the same numbers, whose comparisons must be fair
    "mt-rescaling": (_rescaling, translation.rescaling),
    "mt-embeddings": (_embeddings, translation.embeddings),
}
