"""Translations beyond one sentence and one step: paragraphs sentence by sentence, and through a third language."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from polyloom.data.records import Bitext, Record
from polyloom.data.sentences import join_sentences, split_sentences
from polyloom.evaluate.answers import Answering, Tell
from polyloom.types import Condition


def translate(
    answering: Answering,
    records: Iterable[Record],
    condition: Condition,
    *,
    pivot: str | None = None,
    sentences: bool = False,
) -> Iterator[str]:
    """Translate texts in order.

    Args:
        answering: A model that translates.
        records: Pairs, whose sources are translated.
        condition: From which language into which.
        pivot: A language to translate into first, and from there into the target.
        sentences: Whether texts are paragraphs, to be cut into sentences and put together again.
    """
    if sentences:
        texts = [split_sentences(record.source) for record in records if isinstance(record, Bitext)]
        parts = [Bitext(sentence, "") for text in texts for sentence in text]
        made = translate(answering, parts, condition, pivot=pivot)
        yield from (join_sentences([next(made) for _ in text]) for text in texts)
    elif len(steps(condition, pivot)) == 1:
        yield from answering.answers(records, condition)
    else:
        first, second = steps(condition, pivot)
        between = [Bitext(text, "") for text in answering.answers(records, first)]
        yield from answering.answers(between, second)


def steps(condition: Condition, pivot: str | None) -> list[Condition]:
    """The directions that a translation goes through."""
    if pivot is None or pivot in condition.languages:
        return [condition]
    return [Condition("mt", condition.source, pivot), Condition("mt", pivot, condition.target)]


def translate_all(
    answering: Answering,
    records: Mapping[Condition, Sequence[Record]],
    *,
    pivot: str | None = None,
    tell: Tell = lambda _: None,
) -> dict[Condition, list[str]]:
    """Translate many directions together, in batches that they share; what comes out is what each gives alone."""
    ways = [(steps(condition, pivot), record) for condition, some in records.items() for record in some]
    texts = answering.texts([(way[0], record) for way, record in ways], tell=tell)
    longer = [place for place, (way, _) in enumerate(ways) if len(way) > 1]
    again = answering.texts([(ways[place][0][1], Bitext(texts[place], "")) for place in longer], tell=tell)
    for place, text in zip(longer, again, strict=True):
        texts[place] = text
    made = iter(texts)
    return {condition: [next(made) for _ in some] for condition, some in records.items()}
