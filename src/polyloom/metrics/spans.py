"""Entities in tags: where they are, as conlleval and seqeval's default mode read them, and how many are right."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.metrics.score import Array, aligned


class Span(NamedTuple):
    """An entity: its type and its words, ``start`` up to but not including ``stop``."""

    label: str
    start: int
    stop: int


def spans(tags: Sequence[str]) -> list[Span]:
    """Read entities from BIO or BIOES tags, malformed ones too.

    A word continues an entity if it is tagged I or E, the word before B or I, and both have the same type. Any other
    word that is not O begins an entity. This one rule is what all the cases of conlleval come to.
    """
    found: list[Span] = []
    before, label_before = "O", ""
    for position, tag in enumerate(tags):
        prefix, label = _split(tag)
        if prefix in ("I", "E") and before in ("B", "I") and label == label_before:
            found[-1] = found[-1]._replace(stop=position + 1)
        elif prefix != "O":
            found.append(Span(label, position, position + 1))
        before, label_before = prefix, label
    return found


def repair_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Valid BIO2 tags with the same entities."""
    repaired = ["O"] * len(tags)
    for label, start, stop in spans(tags):
        repaired[start:stop] = [f"B-{label}", *[f"I-{label}"] * (stop - start - 1)]
    return tuple(repaired)


def span_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Parts of `F1`, ``[N, 3]``: entities with the right type and extent, predicted entities, gold entities."""
    counts = []
    for one, other in aligned(gold, predicted, what="tags"):
        right, guessed = set(spans(one)), set(spans(other))
        counts.append((len(right & guessed), len(guessed), len(right)))
    return np.array(counts, np.int64).reshape(-1, 3)


def _split(tag: str) -> tuple[str, str]:
    prefix, _, label = tag.partition("-")
    if tag != "O" and prefix not in ("B", "I", "E", "S"):
        raise PolyloomError(f"entity tag {tag!r}: neither O nor a prefix and a type, such as B-PER. Known: B, I, E, S.")
    return prefix, label or "_"  # seqeval's name for the type of a bare B or I
