"""Translations beyond one sentence and one step: paragraphs sentence by sentence, and through a third language."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from polyloom.conditions import Condition
from polyloom.data.records import Bitext, Record
from polyloom.data.tokenization.sentences import join_sentences, split_sentences
from polyloom.inference.predictor import Predictor, Progress


def translate(
    predictor: Predictor,
    records: Iterable[Record],
    condition: Condition,
    *,
    pivot: str | None = None,
    sentences: bool = False,
) -> Iterator[str]:
    """Translate texts in order.

    Args:
        predictor: A model that translates.
        records: Pairs, whose sources are translated.
        condition: From which language into which.
        pivot: A language to translate into first, and from there into the target.
        sentences: Whether texts are paragraphs, to be cut into sentences and put together again.
    """
    if sentences:
        texts = [split_sentences(record.source) for record in records if isinstance(record, Bitext)]
        parts = [Bitext(sentence, "") for text in texts for sentence in text]
        made = translate(predictor, parts, condition, pivot=pivot)
        yield from (join_sentences([next(made) for _ in text]) for text in texts)
    elif len(steps(condition, pivot)) == 1:
        yield from predictor.predict(records, condition)
    else:
        first, second = steps(condition, pivot)
        between = [Bitext(text, "") for text in predictor.predict(records, first)]
        yield from predictor.predict(between, second)


def steps(condition: Condition, pivot: str | None) -> list[Condition]:
    """The directions that a translation goes through."""
    if pivot is None or pivot in condition.languages:
        return [condition]
    return [replace(condition, target=pivot), replace(condition, source=pivot)]


def translate_all(
    predictor: Predictor,
    records: Mapping[Condition, Sequence[Record]],
    *,
    pivot: str | None = None,
    progress: Progress = lambda _: None,
) -> dict[Condition, list[str]]:
    """Translate many directions together, in batches that they share; what comes out is what each gives alone."""
    ways = [(steps(condition, pivot), record) for condition, some in records.items() for record in some]
    texts = predictor.translate([(way[0], record) for way, record in ways], progress=progress)
    longer = [place for place, (way, _) in enumerate(ways) if len(way) > 1]
    again = predictor.translate([(ways[place][0][1], Bitext(texts[place], "")) for place in longer], progress=progress)
    for place, text in zip(longer, again, strict=True):
        texts[place] = text
    made = iter(texts)
    return {condition: [next(made) for _ in some] for condition, some in records.items()}
