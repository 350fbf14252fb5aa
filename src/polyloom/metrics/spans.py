"""Read entities from tags, as conlleval and seqeval's default mode do, and count the right ones."""

from collections.abc import Iterator, Sequence
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
        prefix, _, label = tag.partition("-")
        if tag != "O" and prefix not in ("B", "I", "E", "S"):
            raise PolyloomError(
                f"entity tag {tag!r}: neither O nor a prefix and a type, such as B-PER. Known: B, I, E, S."
            )
        label = label or "_"  # seqeval's name for the type of a bare B or I
        # After E or S an entity is over, so an I that follows begins a new one. So does an I of another type, and an I
        # after O: conlleval drops none of them, although BIO2 does not allow them.
        if prefix in ("I", "E") and before in ("B", "I") and label == label_before:
            entities[-1] = entities[-1]._replace(stop=position + 1)
        elif prefix != "O":
            entities.append(Span(label, position, position + 1))
        before, label_before = prefix, label
    return entities


def repair_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Write valid BIO2 tags for the entities of tags that may be malformed; they are scored as before."""
    repaired = ["O"] * len(tags)
    for label, start, stop in spans(tags):
        repaired[start:stop] = [f"B-{label}", *[f"I-{label}"] * (stop - start - 1)]
    return tuple(repaired)


def span_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Count entities with the right type and extent, predicted entities, gold entities: ``[N, 3]``, for `F1`."""
    counts = []
    for gold_tags, predicted_tags in zip_sentences(gold, predicted, what="tags"):
        # An entity is right if type, first and last word are: a set of spans compares all three.
        gold_spans, predicted_spans = set(spans(gold_tags)), set(spans(predicted_tags))
        counts.append((len(gold_spans & predicted_spans), len(predicted_spans), len(gold_spans)))
    return np.array(counts, np.int64).reshape(-1, 3)


def chunk_statistics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Array:
    """Count chunks that are right, predicted and gold, for the `F1` of tags without prefixes: ``[N, 3]``.

    This is what seqeval's ``f1_score`` counts for tags such as ``NOUN``. A chunk is counted where it ends.
    """
    lengths = [len(tags) for tags, _ in zip_sentences(gold, predicted, what="tags")]
    ends = np.cumsum([length + 1 for length in lengths])  # behind every sentence there is an O
    chunks = [set(_chunks(sentences)) for sentences in (gold, predicted)]
    counts_NP = np.zeros((len(lengths), 3), np.int64)
    for column, counted in enumerate((chunks[0] & chunks[1], chunks[1], chunks[0])):
        last = [chunk.stop - 1 for chunk in counted]
        np.add.at(counts_NP[:, column], np.searchsorted(ends, last, side="right"), 1)
    return counts_NP


def _chunks(sentences: Sequence[Sequence[str]]) -> Iterator[Span]:
    """Read chunks from any tags by seqeval's rules, with positions in all sentences joined by an O.

    The first letter of a tag is its prefix and the rest its type, whatever it means: ``CCONJ`` and ``SCONJ`` are of one
    type, and neighbours of one type are one chunk. The types of O and X are equal, so an X may extend a chunk of the
    sentence before; therefore sentences cannot be read one by one.
    """
    before, label_before, start = "O", "", 0
    for position, tag in enumerate(tag for tags in sentences for tag in (*tags, "O")):
        prefix, label = tag[:1], tag[1:].split("-", 1)[-1] or "_"
        is_other = label != label_before
        # seqeval's `end_of_chunk` and `start_of_chunk`. Prefixes without a rule of their own, such as the N of NOUN,
        # only meet the last one: a chunk ends and another begins where the type changes.
        if (
            before in ("E", "S")
            or (before in ("B", "I") and prefix in ("B", "S", "O"))
            or (before not in "O." and is_other)
        ):
            yield Span(label_before, start, position)
        if (
            prefix in ("B", "S")
            or (before in ("E", "S", "O") and prefix in ("E", "I"))
            or (prefix not in "O." and is_other)
        ):
            start = position
        before, label_before = prefix, label
