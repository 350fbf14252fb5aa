"""Read entities from tags, as conlleval and seqeval's default mode do, and count the right ones."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.metrics.score import Array, zip_sentences


class Span(NamedTuple):
    """An entity: its type, and the words from ``start`` up to but not including ``stop``."""

    label: str
    start: int
    stop: int


def spans(tags: Sequence[str]) -> list[Span]:
    """Read entities from BIO or BIOES tags, malformed ones too.

    A word continues an entity if it is tagged I or E, the word before B or I, and both have the same type. Any other
    word that is not O begins an entity. This rule covers all cases of conlleval.
    """
    entities: list[Span] = []
    before, label_before = "O", ""
    for position, tag in enumerate(tags):
        prefix, label = _split(tag)
        if prefix in ("I", "E") and before in ("B", "I") and label == label_before:
            entities[-1] = entities[-1]._replace(stop=position + 1)
        elif prefix != "O":
            entities.append(Span(label, position, position + 1))
        before, label_before = prefix, label
    return entities


def repair_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Write valid BIO2 tags for the entities of tags that may be malformed."""
    repaired = ["O"] * len(tags)
    for label, start, stop in spans(tags):
        repaired[start:stop] = [f"B-{label}", *[f"I-{label}"] * (stop - start - 1)]
    return tuple(repaired)


def span_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Count entities with the right type and extent, predicted entities, gold entities: ``[N, 3]``, for `F1`."""
    counts = []
    for gold_tags, predicted_tags in zip_sentences(gold, predicted, what="tags"):
        gold_spans, predicted_spans = set(spans(gold_tags)), set(spans(predicted_tags))
        counts.append((len(gold_spans & predicted_spans), len(predicted_spans), len(gold_spans)))
    return np.array(counts, np.int64).reshape(-1, 3)


def _split(tag: str) -> tuple[str, str]:
    prefix, _, label = tag.partition("-")
    if tag != "O" and prefix not in ("B", "I", "E", "S"):
        raise PolyloomError(f"entity tag {tag!r}: neither O nor a prefix and a type, such as B-PER. Known: B, I, E, S.")
    return prefix, label or "_"  # seqeval's name for the type of a bare B or I
