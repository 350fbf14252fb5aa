"""Translate paragraphs sentence by sentence, and through a third language."""

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
        predictor: A model with a head for translation.
        records: Pairs; their sources are translated.
        condition: The direction.
        pivot: A language to translate into first, and from there into the target. Default: none.
        sentences: Split texts into sentences, and join their translations. Default: translate texts as they are.
    """
    if sentences:
        texts = [split_sentences(record.source) for record in records if isinstance(record, Bitext)]
        parts = [Bitext(sentence, "") for text in texts for sentence in text]
        translations = translate(predictor, parts, condition, pivot=pivot)
        yield from (join_sentences([next(translations) for _ in text]) for text in texts)
    elif len(steps(condition, pivot)) == 1:
        yield from predictor.predict(records, condition)
    else:
        first, second = steps(condition, pivot)
        between = [Bitext(text, "") for text in predictor.predict(records, first)]
        yield from predictor.predict(between, second)


def steps(condition: Condition, pivot: str | None) -> list[Condition]:
    """Return the directions that a translation goes through."""
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
    """Translate many directions in shared batches; the translations are those of each direction alone."""
    routes = [(steps(condition, pivot), record) for condition, sources in records.items() for record in sources]
    texts = predictor.translate([(route[0], record) for route, record in routes], progress=progress)
    pivoted = [place for place, (route, _) in enumerate(routes) if len(route) > 1]
    second = [(routes[place][0][1], Bitext(texts[place], "")) for place in pivoted]
    for place, text in zip(pivoted, predictor.translate(second, progress=progress), strict=True):
        texts[place] = text
    translations = iter(texts)
    return {condition: [next(translations) for _ in sources] for condition, sources in records.items()}
