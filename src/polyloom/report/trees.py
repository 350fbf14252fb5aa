"""Dependency trees as arcs over words: the right tree above, and below the words what was answered wrongly."""

import unicodedata
from collections.abc import Sequence
from typing import Literal

from polyloom.report.html import Markup, tag
from polyloom.report.plots import svg

Heads = tuple[Sequence[int], Sequence[str]]  # of every word its head, counted from 1 with 0 for none, and the relation
_LEVEL = 26  # pixels between arcs that lie above one another
_ROOT = 34  # height of an arc from nowhere


def wrong_arcs(gold: Heads, answer: Heads) -> list[int]:
    """Words, counted from 0, whose head or relation is wrong as LAS counts it: subtypes of relations do not matter."""
    universal = [[relation.partition(":")[0] for relation in side[1]] for side in (gold, answer)]
    heads = [[int(head) for head in side[0]] for side in (gold, answer)]
    ours, theirs = (list(zip(h, u, strict=True)) for h, u in zip(heads, universal, strict=True))
    return [i for i, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]


def draw_tree(words: Sequence[str], gold: Heads, answer: Heads) -> Markup:
    """Draw a tree; wrong arcs are dashed, lie below, and are marked."""
    wrong = wrong_arcs(gold, answer)
    relations = (*gold[1], *(answer[1][i] for i in wrong))
    gap = max(34.0, *(7.0 * len(relation) * 0.62 for relation in relations))
    middles, x = [], 8.0
    for word in words:
        width = text_width(word)
        middles.append(x + max(width, gap) / 2)
        x += max(width, gap) + 10
    above, below = _levels(gold[0], range(len(words))), _levels(answer[0], wrong)
    base = _ROOT + _LEVEL * max(above.values(), default=0) + 6
    missed = set(wrong)
    arcs = [
        _arc(middles, i, gold, base=base, level=above[i], kind="missed" if i in missed else "right")
        for i in range(len(words))
    ]
    arcs += [_arc(middles, i, answer, base=base + 24, level=below[i], kind="said") for i in wrong]
    drawn = [lines for lines, _ in arcs] + [name for _, name in arcs]
    drawn += [tag("text", w, x=at, y=base + 16, class_="word") for w, at in zip(words, middles, strict=True)]
    foot = (_ROOT + _LEVEL * max(below.values(), default=0)) if wrong else 0
    label = f"Tree of {len(words)} words; " + (f"{len(wrong)} of them are attached wrongly" if wrong else "all right")
    return svg(*drawn, size=(x, base + 30 + foot), label=label, class_="tree")


def text_width(word: str) -> float:
    """About how wide a word is: letters of East Asia take the room of two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in word)
    marks = sum(unicodedata.combining(letter) > 0 for letter in word)
    return 8.5 * (len(word) + 0.8 * wide - marks)


def _levels(heads: Sequence[int], dependents: Sequence[int]) -> dict[int, int]:
    """How high each arc must be to lie over those within it; arcs from the root stand upright."""
    spans = {i: tuple(sorted((i + 1, heads[i]))) for i in dependents}
    levels: dict[int, int] = {}
    for i in sorted(spans, key=lambda i: (spans[i][1] - spans[i][0], i)):
        low, high = spans[i]
        within = [levels[j] for j in levels if heads[j] and spans[j][1] > low and high > spans[j][0]]
        levels[i] = 1 + max(within, default=0) if heads[i] else 0
    top = max(levels.values(), default=0)
    return {i: level if heads[i] else top for i, level in levels.items()}


def _arc(
    middles: Sequence[float],
    dependent: int,
    tree: Heads,
    *,
    base: float,
    level: int,
    kind: Literal["right", "missed", "said"],
) -> tuple[Markup, Markup]:
    """Its lines and its name, which is written when all lines are drawn."""
    down = kind == "said"
    head, relation = int(tree[0][dependent]), tree[1][dependent]
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
    name = f"✗ {relation}" if down else relation
    text = tag("text", name, x=middle, y=tip + (13 if down else -3), class_=f"middle arc {kind}")
    return tag("g", tag("path", d=path), tag("path", d=arrow, class_="arrow"), class_=f"arc {kind}"), text
