"""Each figure shows what it was given, with few and with many languages."""

import re
from typing import Any

import numpy as np
import pytest

from polyloom.cli.render import probe as probe_view
from polyloom.data.records import Tree
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.figures.bars import bar_figure, draw_groups
from polyloom.figures.canvas import to_svg
from polyloom.figures.curves import Curve, curve_figure, draw_capacity, thinned
from polyloom.figures.forest import Interval, forest_figure
from polyloom.figures.languages import dendrogram_figure, draw_languages, family_styles, map_figure
from polyloom.figures.matrices import draw_directions, draw_donors, draw_weights
from polyloom.figures.palette import LIGHT, PAPER, STYLES
from polyloom.figures.trees import draw_tree
from polyloom.metrics.score import BLEU
from tests.evaluate.test_directions import RESOURCES, direction, score, scored
from tests.report.reading import Page
from tests.shared import nightly


def read(figure: Any) -> Page:
    return Page(to_svg(figure, label="x"))


def texts(page: Page) -> list[str]:
    return [text for name, text in page.texts if name == "text"]


def chain(count: int) -> list[list[float]]:
    """Join leaf after leaf."""
    return [[0, 1, 0.1, 2], *([i + 1, count + i - 1, 0.1 * (i + 1), i + 2] for i in range(1, count - 1))][: count - 1]


def languages(count: int, families: dict[str, str | None] | None = None) -> dict[str, Any]:
    names = [f"l{i}" for i in range(count)]
    places = {name: [float(i % 12), 0.3 * (i // 12)] for i, name in enumerate(names)}
    return {"languages": names, "families": families or dict.fromkeys(names), "map": places, "linkage": chain(count)}


def test_families_beyond_the_palette_share_one_style():
    families = {f"x{i}": f"family {i % 10}" for i in range(30)} | {"zz": None}
    styles = family_styles(families)
    assert len(styles) == len(STYLES) + 2
    assert len(set(styles.values())) == len(styles), "colour and marker tell them apart"


def test_a_map_has_a_marker_for_every_language_and_no_name_over_another():
    probe = languages(120, {f"l{i}": f"f{i % 9}" for i in range(120)})
    page = read(map_figure(probe))
    tooltips = {text for name, text in page.texts if name == "title"}
    assert {f"l{i}: f{i % 9}" for i in range(120)} <= tooltips
    boxes = []
    for name, attributes in page.elements:
        if name == "text" and attributes["font-size"] == "6px":
            boxes.append((float(attributes["x"] or 0), float(attributes["y"] or 0)))
    assert 10 < len(boxes) <= 120, "names without room are left out"
    for i, (x, y) in enumerate(boxes):
        assert not any(abs(x - u) < 7 and abs(y - v) < 5 for u, v in boxes[:i])
    assert "aa" in texts(read(map_figure({"languages": ["aa"], "families": {}, "map": {"aa": [0, 0]}})))


def test_a_dendrogram_has_each_language_once_beside_its_neighbour():
    linkage = [[0, 2, 0.1, 2], [1, 3, 0.2, 2], [4, 5, 1.0, 4]]
    probe = {"languages": ["a", "b", "c", "d"], "families": {}, "linkage": linkage}
    names = [text for text in texts(read(dendrogram_figure(probe))) if text in "abcd"]
    assert names == ["a", "c", "b", "d"]
    assert "a" in texts(read(dendrogram_figure({"languages": ["a"], "families": {}, "linkage": []})))


def test_long_runs_make_no_long_curves():
    points = [(float(i), 1.0 / (i + 1)) for i in range(100_000)]
    thin = thinned(points)
    assert len(thin) <= 80
    assert sum(y for _, y in thin) / len(thin) == pytest.approx(sum(y for _, y in points) / len(points), rel=0.01)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 0.0), (10.0, 5.0)],
        [(10.0, 3.0)],
        [(1.0, 1e-3), (9.0, 1e6)],
        [(1.0, 7.0), (9.0, 7.3)],
        [(1.0, 2.0), (9.0, 2.0)],
    ],
    ids=["zero", "one", "wide", "narrow", "constant"],
)
def test_curves_stay_within_their_frame(points, log):
    """Nothing is clipped in SVG, so nothing may lie outside."""
    curve = Curve(points, band=[(x, y, y) for x, y in points], marked=points[-1:])
    svg = to_svg(curve_figure([curve], label="x", end=100.0, log=log), label="x")
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    for name, attributes in Page(svg).elements:
        if name == "path" and "transform" not in attributes:
            numbers = [float(n) for n in re.findall(r"-?[\d.]+", attributes["d"] or "")]
            assert all(-1 <= x <= width + 1 for x in numbers[::2])
            assert all(-1 <= y <= height + 1 for y in numbers[1::2])
    assert len([text for text in texts(Page(svg)) if re.fullmatch(r"[\d.−ek+-]+", text)]) >= 3, "numbers at both axes"


def test_only_shown_differences_are_filled_and_rows_keep_their_order():
    rows = [
        Interval("aa", 3, 1, 5, significant=True),
        Interval("bb", -1, -2, 0.5, significant=False),
        Interval("cc", 0, np.nan, np.nan, significant=False),
    ]
    page = read(forest_figure(rows, label="A − B"))
    assert [text for text in texts(page) if text in ("aa", "bb", "cc")] == ["aa", "bb", "cc"]
    markers = [
        a["fill"] for name, a in page.elements if name == "path" and a.get("stroke") == LIGHT["c0"] and "transform" in a
    ]
    assert markers == [LIGHT["c0"], PAPER, PAPER]
    assert "0" in texts(page)
    assert any(text.startswith("+") for text in texts(page))


def test_a_series_without_values_gets_no_bars():
    page = read(bar_figure(["s0", "s1"], {"first": [0.5, None], "second": [None, None]}, label="spread"))
    assert {"s0", "s1", "spread"} <= set(texts(page))
    assert "second" not in texts(page)
    assert {"first", "second"} <= set(texts(read(bar_figure(["s0"], {"first": [1.0], "second": [2.0]}, label="x"))))


@pytest.mark.parametrize("count", [2, 30, *nightly(100)])
def test_figures_have_room_for_few_and_for_many(tmp_path, count):
    probe = languages(count)
    names = probe["languages"]
    draw_languages(probe, tmp_path / "languages.png")
    scores = [[float(i + j) if i != 1 else None for j in range(count)] for i in range(count)]
    swapped = {"languages": names, "own": names, "donors": names, "scores": scores, "task": "pos", "metric": "f1"}
    draw_donors(swapped, tmp_path / "swap.png")
    assert "language" in probe_view.show_swap(swapped, higher_is_better=True)
    site = {"site": "encoder.0", "between_languages": 0.1, "between_tasks": None, "effective_rank": 1.0}
    draw_weights(
        {"conditions": names, "similarity": [[1.0] * count] * count, "sites": [site]}, tmp_path / "weights.png"
    )


def test_spectra_are_drawn(tmp_path):
    nothing = {"width": 3, "participation_ratio": 0.0, "effective_rank": 0.0, "spectrum": []}
    draw_capacity({"embeddings": nothing, "read": {**nothing, "spectrum": [0.9, 0.1]}}, tmp_path / "capacity.svg")
    assert "language embeddings: 0.0 of 3" in texts(Page((tmp_path / "capacity.svg").read_text().partition("?>")[2]))


def test_directions_and_groups_are_drawn(tmp_path):
    draw_groups(scored(), tmp_path / "groups.svg", resources=RESOURCES)
    draw_directions(scored(), tmp_path / "grid.png", metric="chrf")
    labels = texts(Page((tmp_path / "groups.svg").read_text().partition("?>")[2]))
    assert {"En→X (3)", "X→Y⁰ (2)", "17.0", "28.0"} <= set(labels)
    with pytest.raises(PolyloomError, match="no translation is scored by ter"):
        draw_groups(scored(), tmp_path / "groups.png", metric="ter")


def test_directions_of_a_hundred_languages_are_drawn(tmp_path):
    many = {direction(f"en/l{i}"): Result((score(BLEU, i / 2),), zero_shot=False) for i in range(99)}
    draw_directions(Matrix(many), tmp_path / "grid.png")
    draw_groups(Matrix(many), tmp_path / "groups.png")
    assert {file.name for file in tmp_path.iterdir()} == {"grid.png", "groups.png"}


def test_arcs_over_the_same_words_lie_at_different_heights():
    tree = Tree(tuple("abcd"), (0, 1, 1, 1), ("r", "x", "y", "z"))
    drawn = Page(draw_tree(tree.words, tree, tree))
    heights = [a["y"] for name, a in drawn.elements if name == "text" and "arc" in (a.get("class") or "") and a["x"]]
    assert len(set(heights[1:])) == 3


def test_the_axes_of_a_map_name_its_projection():
    probe = {"languages": ["aa", "bb"], "families": {}, "map": {"aa": [0, 0], "bb": [1, 2]}}
    for given, axis in (({}, "first principal component"), ({"projection": "umap"}, "first dimension of UMAP")):
        assert axis in texts(read(map_figure(probe | given)))
