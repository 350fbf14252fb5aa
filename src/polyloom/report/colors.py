"""Colours that everyone can tell apart, and text that can be read on them.

The scale is cividis (Nuñez, Anderton & Renslow 2018), even to the eye with and without a deficiency of colour vision.
Lines and markers use the set of Okabe & Ito (2008), darkened or lightened where it is too faint on paper or screen.
"""

from collections.abc import Sequence

SCALE: Sequence[str] = (
    "#00224e", "#002e6c", "#1e3a6f", "#35456c", "#47516c", "#575d6d", "#666970", "#757575",
    "#848279", "#948e77", "#a59c74", "#b7a96e", "#c8b866", "#dbc75a", "#eed649", "#fee838",
)  # fmt: skip


def luminance(color: str) -> float:
    """Relative luminance of ``#rrggbb`` by WCAG 2."""
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast of two colours by WCAG 2, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(background: str) -> str:
    """Black or white, whichever is easier to read."""
    return max("#000000", "#ffffff", key=lambda color: contrast(color, background))


def shade(share: float) -> str:
    """The class of a cell that lies so far (0 to 1) between the lowest and the highest."""
    return f"s{min(len(SCALE) - 1, max(0, int(share * len(SCALE))))}"


def scale_css() -> str:
    """The classes of the scale: cells need no style of their own, which the page's policy would refuse."""
    return "".join(f".s{i}{{background:{color};color:{ink(color)}}}\n" for i, color in enumerate(SCALE))
