"""Figures as files and as SVG of a page: nothing foreign, nothing that collides, the same every time."""

import sys
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from polyloom.errors import PolyloomError
from polyloom.figures.canvas import require_matplotlib, save, to_svg
from polyloom.figures.curves import Curve, curve_figure, line_sample
from polyloom.figures.forest import Interval, forest_figure
from polyloom.figures.languages import draw_languages
from tests.report.reading import Page

HOSTILE = [
    "<script>alert(1)</script>",
    "</title></svg>",
    "&lt;",
    '" onload="x',
    "]]>",
    "\x00\x1b[31m",
    "\ud800",
    "$x$",
    "日本",
]


def example() -> object:
    curves = [Curve([(1.0, 3.0), (5.0, 2.0)], band=[(1.0, 2.0, 4.0), (5.0, 1.0, 3.0)], marked=[(5.0, 2.0)])]
    return curve_figure(curves, label="nats per token", end=10.0, borders=[4.0])


def test_svg_has_text_and_nothing_that_a_strict_page_refuses():
    svg = to_svg(example(), label="Loss", class_="figure")
    read = Page(svg)
    assert read.elements[0][1]["class"] == "figure"
    assert read.texts[0] == ("title", "Loss")
    assert {"nats per token", "step"} <= {text for name, text in read.texts if name == "text"}
    assert read.names() <= {"svg", "title", "g", "path", "text"}
    allowed = {
        "viewBox".lower(),
        "width",
        "height",
        "role",
        "class",
        "d",
        "x",
        "y",
        "transform",
        "fill",
        "fill-opacity",
    }
    allowed |= {"opacity", "text-anchor", "font-size", "font-weight"}
    allowed |= {f"stroke{part}" for part in ("", "-width", "-linejoin", "-linecap", "-dasharray", "-opacity")}
    assert {name for _, attributes in read.elements for name in attributes} <= allowed


def test_the_same_figure_is_the_same_svg():
    assert to_svg(example(), label="x") == to_svg(example(), label="x")


@pytest.mark.parametrize("text", HOSTILE)
def test_names_stay_text(text):
    figures = (
        to_svg(forest_figure([Interval(name, 1, 0, 2, significant=True)], label="x"), label=name)
        for name in (text, "a")
    )
    hostile, plain = map(Page, figures)
    assert hostile.elements == plain.elements or [e[0] for e in hostile.elements] == [e[0] for e in plain.elements]
    shown = text.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")
    assert ("title", shown) in hostile.texts
    assert ("text", shown) in hostile.texts, "no formula, nothing left out"


def test_files_are_written_without_dates_and_svg_is_xml(tmp_path):
    for suffix in ("png", "pdf", "svg"):
        for number in (1, 2):
            save(example(), tmp_path / f"{number}.{suffix}", label="x")
        assert (tmp_path / f"1.{suffix}").read_bytes() == (tmp_path / f"2.{suffix}").read_bytes()
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "1.pdf").read_bytes().startswith(b"%PDF")
    assert ET.parse(tmp_path / "1.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_settings_of_the_callers_own_figures_neither_matter_nor_change():
    usual = to_svg(example(), label="x")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert to_svg(example(), label="x") == usual
        assert mpl.rcParams["font.size"] == 30
        assert mpl.rcParams["svg.fonttype"] == "path"


def test_without_matplotlib_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PolyloomError, match=r"^--figure: the package matplotlib .* pip install 'polyloom\[plots\]'"):
        require_matplotlib("--figure")
    for draw in (lambda: draw_languages({"languages": []}, tmp_path / "x.png"), lambda: line_sample(0)):
        with pytest.raises(PolyloomError, match=r"pip install 'polyloom\[plots\]'"):
            draw()
