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
        # All sentences of all texts share batches, then each text is put together from its own.
        split = [split_sentences(record.source) for record in records if isinstance(record, Bitext)]
        parts = [Bitext(sentence, "") for text_sentences in split for sentence in text_sentences]
        translations = list(translate(predictor, parts, condition, pivot=pivot, strict=strict))
        begin = 0
        for text_sentences in split:
            yield join_texts(translations[begin : begin + len(text_sentences)])
            begin += len(text_sentences)
    elif len(steps(condition, pivot)) == 1:
        yield from predictor.predict(records, condition, strict=strict)
    else:
        # What could not be translated into the pivot stays an error; the rest goes on from there.
        first, second = steps(condition, pivot)
        texts = dict(enumerate(predictor.predict(records, first, strict=strict)))
        places = [place for place, text in texts.items() if isinstance(text, str)]
        sources = [Bitext(texts[place], "") for place in places]
        texts |= zip(places, predictor.predict(sources, second, strict=strict), strict=True)
        yield from texts.values()


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
    inputs = [(condition, record) for condition, sources in records.items() for record in sources]
    routes = [steps(condition, pivot) for condition, _ in inputs]
    first = [(route[0], record) for route, (_, record) in zip(routes, inputs, strict=True)]
    texts = predictor.translate(first, progress=progress)

    # Those that went into the pivot go on from there.
    places = [place for place, route in enumerate(routes) if len(route) > 1]
    second = [(routes[place][1], Bitext(texts[place], "")) for place in places]
    for place, text in zip(places, predictor.translate(second, progress=progress), strict=True):
        texts[place] = text

    translations: dict[Condition, list[str]] = {condition: [] for condition in records}
    for (condition, _), text in zip(inputs, texts, strict=True):
        translations[condition].append(text)
    return translations
