"""Translate paragraphs sentence by sentence, and through a third language."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from polyloom.conditions import Condition
from polyloom.data.records import Bitext, Record
from polyloom.data.tokenization.sentences import split_sentences
from polyloom.errors import PredictionError
from polyloom.inference.predictor import Predictor, Progress, join_texts


def translate(
    predictor: Predictor,
    records: Iterable[Record],
    condition: Condition,
    *,
    pivot: str | None = None,
    sentences: bool = False,
    strict: bool = True,
) -> Iterator[str | PredictionError]:
    """Translate texts in order.

    Args:
        predictor: A model with a head for translation.
        records: Pairs; their sources are translated.
        condition: The direction.
        pivot: A language to translate into first, and from there into the target. Default: none.
        sentences: Split texts into sentences, and join their translations. Default: translate texts as they are.
        strict: Whether a text that cannot be translated raises an error; see `Predictor.predict_mixed`.
    """
    if sentences:
        texts = [split_sentences(record.source) for record in records if isinstance(record, Bitext)]
        parts = [Bitext(sentence, "") for text in texts for sentence in text]
        translations = translate(predictor, parts, condition, pivot=pivot, strict=strict)
        yield from (join_texts([next(translations) for _ in text]) for text in texts)
    elif len(steps(condition, pivot)) == 1:
        yield from predictor.predict(records, condition, strict=strict)
    else:
        first, second = steps(condition, pivot)
        between = list(predictor.predict(records, first, strict=strict))
        sources = [Bitext(text, "") for text in between if isinstance(text, str)]
        translated = predictor.predict(sources, second, strict=strict)
        yield from (next(translated) if isinstance(text, str) else text for text in between)


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
