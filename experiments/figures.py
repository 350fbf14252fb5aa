"""Figures of docs/results.md."""

from pathlib import Path
from statistics import stdev

from experiments.measures import both_ways
from experiments.read import MissingError
from experiments.studies import translation

COLORS = {"dense": "C0", "wide": "C1", "stored": "C2", "generated": "C3", "small": "C4"}  # the same in all panels


def draw_figures(folder: Path) -> None:
    """Draw the map of translation, if all its cells are measured."""
    try:
        lines = {
            width: {
                name: [both_ways(f"{name}-d{width}-l{count}-s{translation.STEPS}") for count in _counts(name)]
                for name in translation.methods(width, max(translation.LANGUAGES))
            }
            for width in translation.WIDTHS
        }
    except MissingError:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 - only to draw

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    panels = figure.subplots(1, len(lines), sharey=True)
    for panel, (width, methods) in zip(panels, lines.items(), strict=True):
        for name, values in methods.items():
            means, spreads = [one.mean for one in values], [stdev(one.by_seed) for one in values]
            panel.errorbar(_counts(name), means, spreads, marker="o", capsize=3, color=COLORS[name], label=name)
        panel.set(title=f"width {width}", xlabel="languages", xticks=sorted(translation.LANGUAGES))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("BLEU, mean of both ways")
    panels[0].legend(frameon=False)
    figure.savefig(folder / "translation-map.png", dpi=150)


def _counts(name: str) -> list[int]:
    return [count for count in sorted(translation.LANGUAGES) if name in translation.methods(32, count)]
