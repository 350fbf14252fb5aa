"""Figures of the experiments on translation."""

from typing import Any

import matplotlib as mpl
import numpy as np
from read import mean, results
from tables_mt import METHODS, RESCALED, added, into, losses, out_of
from translations import SHARED

mpl.use("agg")
import matplotlib.pyplot as plt

COLORS = {
    "dense": ("#777777", "s"), "lang-adapters": ("#d55e00", "D"), "pair-adapters": ("#cc79a7", "v"),
    "hyper-17": ("#56b4e9", "o"), "hyper-33": ("#0072b2", "o"), "hyper-100": ("#003f6b", "o"),
}  # fmt: skip
GROUPS = {
    "romance": ("#d55e00", "o"),
    "germanic": ("#0072b2", "s"),
    "slavic": ("#009e73", "^"),
    "turkic": ("#cc79a7", "D"),
}


def convergence() -> Any:
    """Validation loss over steps, and what parameters buy."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    rows = {name: results("mt-table")[name] for name in METHODS}
    for name, row in rows.items():
        color, marker = COLORS[name]
        curves = losses(row)
        steps = row.runs[0]["recipe"]["train"]["evaluate_every"] * np.arange(1, curves.shape[1] + 1)
        left.plot(steps, curves.mean(0), color=color, marker=marker, ms=3, lw=1, label=name)
        middle.plot(added(row) / 1000, mean(out_of(row)), marker, color=color)
        right.plot(added(row) / 1000, mean(into(row)), marker, color=color)
    left.axhline(losses(rows["lang-adapters"]).mean(0).min(), color=COLORS["lang-adapters"][0], lw=0.8, ls=":")
    left.set(xlabel="steps", ylabel="validation loss, nats per piece")
    left.legend(frameon=False)
    for ax, way in ((middle, "En→X"), (right, "X→En")):
        ax.set(xlabel="added parameters, thousands", ylabel=f"BLEU {way}")
    return figure


def rescaling() -> Any:
    """Loss over steps by width, with and without rescaling."""
    widths = list(dict.fromkeys(size for size, _ in RESCALED.values()))
    figure, axes = plt.subplots(1, len(widths), figsize=(7, 3), layout="constrained", sharey=True)
    for name, (size, label) in RESCALED.items():
        row, ax = results("mt-analysis")[name], axes[widths.index(size)]
        curve, every = losses(row)[0], row.runs[0]["recipe"]["train"]["evaluate_every"]
        color = {"off": "#d55e00", "on": "#0072b2"}[label]
        ax.plot(every * np.arange(1, len(curve) + 1), curve, color=color, marker="o", ms=3, lw=1, label=label)
        ax.set(title=f"d_h = {size}", xlabel="steps")
    axes[0].set_ylabel("validation loss, nats per piece")
    axes[0].legend(frameon=False, title="rescaling")
    return figure


def embeddings() -> Any:
    """The first two principal components of what was learnt of languages, after their lengths are made one."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    group = {language: name for name, some in SHARED["groups"].items() for language in some}
    for ax, name in zip(axes, METHODS[3:], strict=True):
        vectors = results("mt-table")[name].runs[0]["embeddings"]
        table = np.array(list(vectors.values()))
        table /= np.linalg.norm(table, axis=1, keepdims=True)
        centred = table - table.mean(0)
        places = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
        for (x, y), language in zip(places, vectors, strict=True):
            color, marker = GROUPS[group[language]]
            ax.plot(x, y, marker, color=color, ms=5)
            ax.annotate(language, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
        ax.set(title=name, xticks=[], yticks=[])
    for label, (color, marker) in GROUPS.items():
        axes[0].plot([], [], marker, color=color, label=label)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
