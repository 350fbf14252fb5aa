"""Figures of the result pages."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from experiments.read import CORPORA, SEEN, UNSEEN, Row, few_shot_scores, interval, mean, results, select, swapped
from experiments.tables import translation
from polyloom.probe.projection import flat_map

mpl.use("agg")
import matplotlib.pyplot as plt

METHODS = {
    "full": ("full-multi", "#777777", "s"),
    "multilingual": ("multilingual", "#009e73", "^"),
    "MAD-X": ("madx", "#d55e00", "D"),
    "Hyper-X": ("hyperx-multi", "#0072b2", "o"),
}  # row, colour and marker
DONORS = (
    ("related", "#009e73", "o", "related"),
    ("peer", "#e69f00", "D", "unrelated, same group"),
    ("distant", "#999999", "s", "unrelated, other group"),
)
ORDER = ["en", *SEEN, *UNSEEN]
TRANSLATION = {
    "dense": ("#777777", "s"), "lang-adapters": ("#d55e00", "D"), "pair-adapters": ("#cc79a7", "v"),
    "hyper-17": ("#56b4e9", "o"), "hyper-33": ("#0072b2", "o"), "hyper-100": ("#003f6b", "o"),
}  # fmt: skip
GROUPS = {
    "romance": ("#d55e00", "o"),
    "germanic": ("#0072b2", "s"),
    "slavic": ("#009e73", "^"),
    "turkic": ("#cc79a7", "D"),
}


def draw_figures(folder: Path) -> None:
    """Draw all figures whose results are there."""
    with plt.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        for name, draw in FIGURES.items():
            try:
                figure = draw()
            except KeyError:  # not run yet; the page says so
                continue
            figure.savefig(folder / f"results-{name}.png", dpi=150, metadata={"Software": None})
            plt.close(figure)


def _languages() -> Any:
    """Plot every language with every method, with intervals over sentences."""
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
    scored = [select(row, task, [language]) for language in shown]
    means = np.array([mean(selection) for selection in scored])
    bounds = np.array([interval(selection) for selection in scored]).T
    errors = np.abs(bounds - means)
    ax.errorbar(np.arange(len(shown)) + shift, means, yerr=errors, ms=4.5, lw=1, **style)


def _swaps() -> Any:
    """Plot what the weights of donors cost, in points."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for ax, method in zip(axes, ("Hyper-X", "MAD-X"), strict=True):
        for shift, (kind, color, marker, label) in zip((-0.2, 0, 0.2), DONORS, strict=True):
            own, other = swapped(results("transfer")[METHODS[method][0]], CORPORA[kind])
            for place, language in enumerate(ORDER):
                if with_donor := select(other, "pos", [language]):
                    with_own = select(own, "pos", [language])
                    low, high = interval(with_donor, with_own)
                    value = mean(with_donor) - mean(with_own)
                    error = [[value - low], [high - value]]
                    ax.errorbar(place + shift, value, yerr=error, color=color, fmt=marker, ms=4.5, lw=1)
            ax.plot([], [], marker, color=color, label=label)
        ax.axhline(0, color="black", lw=0.8)
        ax.set_title(method)
        ax.set_xticks(range(len(ORDER)), ORDER)
    axes[0].set_ylabel("POS accuracy, donor's − own weights")
    axes[0].legend(frameon=False, loc="lower left", title="donor")
    return figure


def _few_shot() -> Any:
    """Plot accuracy over the number of tagged sentences."""
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


def _convergence() -> Any:
    """Plot validation loss over steps, and BLEU over added parameters."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    rows = {name: results("mt-table")[name] for name in TRANSLATION}
    for name, row in rows.items():
        color, marker = TRANSLATION[name]
        curves = translation.losses(row)
        steps = row.runs[0]["recipe"]["train"]["evaluate_every"] * np.arange(1, curves.shape[1] + 1)
        left.plot(steps, curves.mean(0), color=color, marker=marker, ms=3, lw=1, label=name)
        middle.plot(translation.added(row) / 1000, mean(translation.out_of(row)), marker, color=color)
        right.plot(translation.added(row) / 1000, mean(translation.into(row)), marker, color=color)
    best = translation.losses(rows["lang-adapters"]).mean(0).min()
    left.axhline(best, color=TRANSLATION["lang-adapters"][0], lw=0.8, ls=":")
    left.set(xlabel="steps", ylabel="validation loss, nats per token")
    left.legend(frameon=False)
    for ax, way in ((middle, "En→X"), (right, "X→En")):
        ax.set(xlabel="added parameters, thousands", ylabel=f"BLEU {way}")
    return figure


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
    for ax, name in zip(axes, translation.METHODS[3:], strict=True):
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


FIGURES = {
    "languages": _languages,
    "swaps": _swaps,
    "few-shot": _few_shot,
    "mt-convergence": _convergence,
    "mt-rescaling": _rescaling,
    "mt-embeddings": _embeddings,
}
