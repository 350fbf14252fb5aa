"""The colours of the project, which colour-blind readers can distinguish, and text that can be read on them.

Series begin with blue and vermilion of Okabe & Ito (2008); the rest was chosen for distance, also without one kind of
cone, and for contrast with the background. Scores use cividis (Nuñez, Anderton & Renslow 2018), which is perceptually
uniform with and without a colour vision deficiency. No figure uses colour alone: series also differ in marker and
dashes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

# Figures are drawn in the light colours. A page in dark mode replaces each by the dark colour of the same name.
LIGHT = {
    "paper": "#ffffff", "ink": "#1a1c1e", "soft": "#555b61", "line": "#c9ced3", "faint": "#f2f4f6", "link": "#005a8c",
    "bad": "#a33c00",
    "c0": "#0072b2", "c1": "#d55e00", "c2": "#004d33", "c3": "#a8507f", "c4": "#5a3a00", "c5": "#000000",
}  # fmt: skip
DARK = {
    "paper": "#15181b", "ink": "#e9ebed", "soft": "#aeb5bc", "line": "#434a51", "faint": "#1f2428", "link": "#7cc4f0",
    "bad": "#ff9a5c",
    "c0": "#56b4e9", "c1": "#e67300", "c2": "#398051", "c3": "#9d5cff", "c4": "#ffd073", "c5": "#ffffff",
}  # fmt: skip
PAPER, INK, SOFT, LINE, BAD = (LIGHT[name] for name in ("paper", "ink", "soft", "line", "bad"))
CMAP = "cividis"
SCALE: Sequence[str] = (  # cividis in 16 steps, for tables
    "#00224e", "#002e6c", "#1e3a6f", "#35456c", "#47516c", "#575d6d", "#666970", "#757575",
    "#848279", "#948e77", "#a59c74", "#b7a96e", "#c8b866", "#dbc75a", "#eed649", "#fee838",
)  # fmt: skip


class Style(NamedTuple):
    """The style of a series.

    Attributes:
        color: Its colour, as ``#rrggbb``.
        marker: Its marker, as Matplotlib names it.
        dashes: The pattern of its lines, as Matplotlib's ``linestyle``.
    """

    color: str
    marker: str
    dashes: Any = "-"


STYLES = (
    Style(LIGHT["c0"], "o"),
    Style(LIGHT["c1"], "s", (0, (6, 2))),
    Style(LIGHT["c2"], "^", (0, (1.5, 1.5))),
    Style(LIGHT["c3"], "D", (0, (7, 2, 1.5, 2))),
    Style(LIGHT["c4"], "v", (0, (10, 3))),
    Style(LIGHT["c5"], "P", (0, (3, 1.5, 1, 1.5, 1, 1.5))),
)
OTHER = Style(SOFT, "p")
UNKNOWN = Style(PAPER, "o")


def series_style(index: int) -> Style:
    """Return the style of a series; styles repeat after the last one."""
    return STYLES[index % len(STYLES)]


def luminance(color: str) -> float:
    """Compute the relative luminance of ``#rrggbb`` (WCAG 2)."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(color: str, other: str) -> float:
    """Compute the contrast ratio of two colours (WCAG 2), from 1 to 21."""
    low, high = sorted((luminance(color), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def text_color(background: str) -> str:
    """Return black or white, whichever has more contrast with the background."""
    return max("#000000", "#ffffff", key=lambda color: contrast(color, background))
