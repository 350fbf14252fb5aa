"""Dependency trees as arcs over words: the gold tree above the words, wrong predictions below them."""

import unicodedata
from collections.abc import Sequence
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, tostring

from polyloom.figures.canvas import new_svg, printable
from polyloom.metrics.attachment import Attached, wrong_words

_LEVEL = 26  # pixels between arcs that lie above one another
_ROOT = 34  # height of an arc from the root


def draw_tree(words: Sequence[str], gold: Attached, predicted: Attached) -> str:
    """Draw a tree as SVG for a page; wrong arcs are dashed, lie below the words, and are marked with a cross."""
    wrong = wrong_words(gold, predicted)
    relations = (*gold.relations, *(predicted.relations[i] for i in wrong))
    # Words stand so far apart that the longest relation fits over an arc between neighbours.
    gap = max(34.0, *(7.0 * len(relation) * 0.62 for relation in relations))
    middles, x = [], 8.0
    for word in words:
        width = text_width(word)
        middles.append(x + max(width, gap) / 2)
        x += max(width, gap) + 10
    above, below = _levels(gold.heads, range(len(words))), _levels(predicted.heads, wrong)
    base = _ROOT + _LEVEL * max(above.values(), default=0) + 6
    foot = (_ROOT + _LEVEL * max(below.values(), default=0)) if wrong else 0
    label = f"Tree of {len(words)} words; " + (f"{len(wrong)} of them are attached wrongly" if wrong else "all correct")
    svg = new_svg((x, base + 30 + foot), label=label, class_="tree")
    names = Element("g")  # above all lines
    for i in range(len(words)):
        kind: Literal["right", "missed"] = "missed" if i in wrong else "right"
        _add_arc((svg, names), middles, i, gold, base=base, level=above[i], kind=kind)
    for i in wrong:
        _add_arc((svg, names), middles, i, predicted, base=base + 24, level=below[i], kind="predicted")
    svg.append(names)
    for word, middle in zip(words, middles, strict=True):
        _add_text(svg, word, (middle, base + 16), "word")
    return tostring(svg, encoding="unicode")


def text_width(word: str) -> float:
    """Estimate the width of a word in pixels: East Asian letters are twice as wide, combining marks have no width."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in word)
    marks = sum(unicodedata.combining(letter) > 0 for letter in word)
    return 8.5 * (len(word) + 0.8 * wide - marks)


def _levels(heads: Sequence[int], dependents: Sequence[int]) -> dict[int, float]:
    """Compute how high each arc must be to lie over those within it; arcs from the root end above all others."""
    spans = {i: tuple(sorted((i + 1, heads[i]))) for i in dependents}
    # From the shortest arc to the longest, so that all arcs within an arc have their levels before it.
    levels: dict[int, float] = {}
    for i in sorted(spans, key=lambda i: (spans[i][1] - spans[i][0], i)):
        low, high = spans[i]
        within = [levels[j] for j in levels if heads[j] and spans[j][1] > low and high > spans[j][0]]
        levels[i] = 1 + max(within, default=0) if heads[i] else 0
    top = max(levels.values(), default=0)
    return {i: level if heads[i] else top + 0.5 for i, level in levels.items()}


def _add_arc(  # noqa: PLR0913 - keywords
    layers: tuple[Element, Element], middles: Sequence[float], dependent: int, tree: Attached, *,
    base: float, level: float, kind: Literal["right", "missed", "predicted"],
) -> None:  # fmt: skip
    """Add the lines of an arc to the first layer and its relation to the second."""
    down = kind == "predicted"
    head, relation = int(tree.heads[dependent]), tree.relations[dependent]
    end, sign = middles[dependent], 1 if down else -1
    tip = base + sign * (_LEVEL * level + 10)
    if head:
        start = middles[head - 1] + (5 if end > middles[head - 1] else -5)
        bend = min(12.0, abs(end - start) / 2) * (1 if end > start else -1)
        path = (
            f"M{start:.1f} {base:.1f}V{tip - sign * 8:.1f}Q{start:.1f} {tip:.1f} {start + bend:.1f} {tip:.1f}"
            f"H{end - bend:.1f}Q{end:.1f} {tip:.1f} {end:.1f} {tip - sign * 8:.1f}V{base:.1f}"
        )
        middle = (start + end) / 2
    else:
        path, middle = f"M{end:.1f} {tip:.1f}V{base:.1f}", end
    arrow = f"M{end - 3:.1f} {base + sign * 6:.1f}L{end:.1f} {base:.1f}L{end + 3:.1f} {base + sign * 6:.1f}"
    lines, names = layers
    group = SubElement(lines, "g", {"class": f"arc {kind}"})
    SubElement(group, "path", {"d": path})
    SubElement(group, "path", {"d": arrow, "class": "arrow"})
    name = f"✗ {relation}" if down else relation
    _add_text(names, name, (middle, tip + (13 if down else -3)), f"middle arc {kind}")


def _add_text(parent: Element, text: str, at: tuple[float, float], classes: str) -> None:
    x, y = (f"{place:.1f}".removesuffix(".0") for place in at)
    SubElement(parent, "text", {"x": x, "y": y, "class": classes}).text = printable(text)
