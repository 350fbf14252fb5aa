"""The palette: everyone can tell its colours apart and read text on them."""

import itertools
import math

import pytest

from polyloom.figures.palette import DARK, LIGHT, OTHER, SCALE, STYLES, UNKNOWN, contrast, luminance, text_color

# Machado et al. (2009), severity 1: linear RGB as seen without one kind of cone.
_VISIONS = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(color: str, kind: str) -> list[float]:
    """CIELAB coordinates of a colour as it is seen."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    r, g, b = (min(1.0, max(0.0, sum(f * c for f, c in zip(row, linear, strict=True)))) for row in _VISIONS[kind])
    xyz = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b
    x, y, z = (max(c, 1e-6) ** (1 / 3) for c in (*xyz, (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089))
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


@pytest.mark.parametrize("kind", _VISIONS)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_series_can_be_told_apart_with_every_kind_of_colour_vision(palette, kind):
    series = [lab(palette[f"c{i}"], kind) for i in range(len(STYLES))]
    assert min(math.dist(a, b) for a, b in itertools.combinations(series, 2)) > 20


def test_series_differ_in_colour_marker_and_dashes_each():
    for part in zip(*STYLES, strict=True):
        assert len(set(part)) == len(STYLES)
    assert len({(style.color, style.marker) for style in (*STYLES, OTHER, UNKNOWN)}) == len(STYLES) + 2


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_can_be_seen_on_paper(palette):
    assert len(set(palette.values())) == len(palette), "a page finds the dark colour by the light one"
    for name in ("ink", "soft", "link", "bad"):
        assert contrast(palette[name], palette["paper"]) >= 4.5, name
        assert contrast(palette[name], palette["faint"]) >= 4.5, name
    for name in (f"c{i}" for i in range(len(STYLES))):
        assert contrast(palette[name], palette["paper"]) >= 3, name
    assert LIGHT.keys() == DARK.keys()


def test_every_step_of_the_scale_can_be_read():
    assert all(contrast(color, text_color(color)) >= 4.5 for color in SCALE)
    brightness = [luminance(color) for color in SCALE]
    assert brightness == sorted(brightness), "printed in grey it is the same scale"
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
