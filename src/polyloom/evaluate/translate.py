"""Translations beyond one sentence and one step: paragraphs sentence by sentence, and through a third language."""

from collections.abc import Iterable, Iterator

from polyloom.data.records import Bitext, Record
from polyloom.data.sentences import join_sentences, split_sentences
from polyloom.evaluate.answers import Answering
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
    elif pivot is None or pivot in condition.languages:
        yield from answering.answers(records, condition)
    else:
        first, second = (Condition("mt", *pair) for pair in ((condition.source, pivot), (pivot, condition.target)))
        between = [Bitext(text, "") for text in answering.answers(records, first)]
        yield from answering.answers(between, second)
