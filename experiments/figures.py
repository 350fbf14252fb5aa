"""Figures of the results."""

from pathlib import Path
from typing import Any

import figures_mt
import matplotlib as mpl
import numpy as np
from read import CORPORA, SEEN, UNSEEN, Row, cells, few_shot_scores, mean, resampled, results, swapped

mpl.use("agg")
import matplotlib.pyplot as plt

METHODS = {
    "full": ("full-multi", "#777777", "s"),
    "multilingual": ("multilingual", "#009e73", "^"),
    "MAD-X": ("madx", "#d55e00", "D"),
    "Hyper-X": ("hyperx-multi", "#0072b2", "o"),
}  # of colours that everyone can tell apart, each with a shape of its own
DONORS = (
    ("related", "#009e73", "o", "a relative"),
    ("peer", "#e69f00", "D", "a stranger of the same group"),
    ("distant", "#999999", "s", "a stranger of the other group"),
)
ORDER = ["en", *SEEN, *UNSEEN]


def draw_all(folder: Path) -> None:
    """Draw them all."""
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        for name, draw in FIGURES.items():
            try:
                figure = draw()
            except KeyError:  # not run yet, as the page says
                continue
            figure.savefig(folder / f"results-{name}.png", dpi=150, metadata={"Software": None})
            plt.close(figure)


def _languages() -> Any:
    """Every language with every method, and intervals over sentences."""
    figure, axes = plt.subplots(2, 1, figsize=(9, 6.4), layout="constrained")
    for ax, task, name in zip(axes, ("pos", "ner"), ("POS accuracy", "NER F1"), strict=True):
        row = results("transfer")["hyperx-multi"]
        shown = [language for language in ORDER if f"{task}/{language}" in row.scores[0]]
        for shift, (method, (key, color, marker)) in zip((-0.24, -0.08, 0.08, 0.24), METHODS.items(), strict=True):
            _points(ax, results("transfer")[key], task, shown, shift, label=method, color=color, fmt=marker)
        for place, language in enumerate(shown if task == "pos" else []):
            majority = row.runs[0]["baselines"][f"pos/{language}"]
            label = "most frequent tag" if not place else None
            ax.plot([place - 0.35, place + 0.35], [majority] * 2, color="black", lw=1, ls=":", label=label)
        border = sum(language not in UNSEEN for language in shown) - 0.5
        ax.axvline(border, color="#bbbbbb", lw=1)
        for edge, text, side in ((border - 0.1, "seen by the backbone", "right"), (border + 0.1, "unseen", "left")):
            ax.text(edge, 1.0, text, ha=side, va="bottom", color="#555555", transform=ax.get_xaxis_transform())
        ax.set_xticks(
            range(len(shown)), [CORPORA["names"][language].replace(" ", "\n") for language in shown], fontsize=7.5
        )
        ax.set_ylabel(name)
        ax.set_ylim(0, 100)
    axes[0].legend(loc="lower left", ncols=5, frameon=False)
    return figure


def _points(ax: Any, row: Row, task: str, shown: list[str], shift: float, **style: Any) -> None:
    chosen = [cells(row, task, [language]) for language in shown]
    means = np.array([mean(some) for some in chosen])
    bounds = np.array([np.quantile(resampled(some), [0.025, 0.975]) for some in chosen]).T
    errors = np.abs(bounds - means)
    ax.errorbar(np.arange(len(shown)) + shift, means, yerr=errors, ms=4.5, lw=1, **style)


def _swaps() -> Any:
    """What other languages' weights cost, in points."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for ax, method in zip(axes, ("Hyper-X", "MAD-X"), strict=True):
        for shift, (kind, color, marker, label) in zip((-0.2, 0, 0.2), DONORS, strict=True):
            own, other = swapped(results("transfer")[METHODS[method][0]], CORPORA[kind])
            for place, language in enumerate(ORDER):
                if wrong := cells(other, "pos", [language]):
                    right = cells(own, "pos", [language])
                    low, high = np.quantile(resampled(wrong) - resampled(right), [0.025, 0.975])
                    value = mean(wrong) - mean(right)
                    error = [[value - low], [high - value]]
                    ax.errorbar(place + shift, value, yerr=error, color=color, fmt=marker, ms=4.5, lw=1)
            ax.plot([], [], marker, color=color, label=label)
        ax.axhline(0, color="black", lw=0.8)
        ax.set_title(method)
        ax.set_xticks(range(len(ORDER)), ORDER)
    axes[0].set_ylabel("POS accuracy − that with own weights")
    axes[0].legend(frameon=False, loc="lower left", title="weights of")
    return figure


def _few_shot() -> Any:
    """Curves over the number of tagged sentences."""
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.8), layout="constrained", sharey=True)
    for ax, language in zip(axes, ("mt", "myv", "wo", "te"), strict=True):
        for method in ("Hyper-X", "MAD-X"):
            start, color, marker = METHODS[method]
            values = few_shot_scores(start, language)
            ax.plot(range(5), values, marker=marker, color=color, ms=4.5, label=method)
        ax.set_xticks(range(5), ["0", "5", "10", "20", "50"])
        ax.set_title(CORPORA["names"][language])
        ax.set_xlabel("tagged sentences")
    axes[0].set_ylabel("POS accuracy")
    axes[0].legend(frameon=False)
    return figure


FIGURES = {
    "languages": _languages,
    "swaps": _swaps,
    "few-shot": _few_shot,
    "mt-convergence": figures_mt.convergence,
    "mt-rescaling": figures_mt.rescaling,
    "mt-embeddings": figures_mt.embeddings,
}
