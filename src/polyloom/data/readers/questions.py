"""Read questions about a context: SQuAD, XQuAD and similar, as their nested JSON, as JSON lines or from the Hub.

The answers are spans of the context. Texts are kept as they are, white space included, since positions count it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from polyloom.data.records import Answer, Question
from polyloom.errors import Location
from polyloom.io.files import File, as_file, checked_text, read_json_document, read_json_lines

EXPECTED = '{"context": "…", "question": "…", "answers": [{"text": "…", "answer_start": 0}]}'


def read_questions(source: Path | File) -> Iterator[Question]:
    """Read JSON lines with a context, a question and its answers."""
    path = as_file(source).path
    for at, row in read_json_lines(path):
        yield make_question(row, at)


def read_squad(source: Path | File) -> Iterator[Question]:
    """Read one JSON document in SQuAD's format: articles, their paragraphs, and the questions about each."""
    path = as_file(source).path
    for article in _list(read_json_document(path), "data", path):
        for paragraph in _list(article, "paragraphs", path):
            for question in _list(paragraph, "qas", path):
                if not isinstance(question, dict):
                    raise Location(path).error("a question that is not an object. Is it in SQuAD's format?")
                yield make_question({**question, "context": paragraph.get("context")}, Location(path))


def make_question(row: Mapping[str, Any], at: Location, *, labelled: bool = True) -> Question:
    """Make a record of a row.

    Args:
        row: ``context``, ``question`` and ``answers``: a list of ``text`` and ``answer_start``, or an object with two
            lists of them, as in data sets of the Hugging Face Hub.
        at: Where it is from, for messages.
        labelled: Whether the answers are read; otherwise there are none.
    """
    if not {"context", "question"} <= row.keys():
        raise at.error(f"expected {EXPECTED}.")
    about = f"question {row['id']}: " if isinstance(row.get("id"), str) else ""
    context, question = (checked_text(row[name], at, name=name) for name in ("context", "question"))
    if not question.strip():
        raise at.error(f"{about}it is empty.")
    answers = tuple(_answers(row.get("answers"), context, at, about)) if labelled else ()
    if labelled and not answers:
        what = "no answer. Questions that cannot be answered, as in SQuAD 2.0, are not supported: remove them."
        raise at.error(about + what)
    return Question(context, question, answers)


def _answers(value: Any, context: str, at: Location, about: str) -> Iterator[Answer]:
    """Read answers, and check that each begins where ``answer_start`` says."""
    if isinstance(value, dict):  # as data sets of the Hub have them: columns instead of rows
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    for answer in value if isinstance(value, list) else ():
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
        if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
            raise at.error(f"{about}an answer without text or answer_start. Expected: {EXPECTED}.")
        # Positions that are counted in bytes or UTF-16 units would silently train other spans.
        if not text.strip() or start < 0 or context[start : start + len(text)] != text:
            place_in_context = context.find(text) if text.strip() else -1
            hint = f" It begins at {place_in_context}." if place_in_context >= 0 else ""
            what = f"the context has no answer {text!r:.60} at character {start}, counted from 0.{hint}"
            raise at.error(about + what)
        yield Answer(text, start)


def _list(value: Any, key: str, path: Path) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        what = f"no list {key!r}. SQuAD's format is data, paragraphs, qas; for one object per line write {path}#jsonl."
        raise Location(path).error(what)
    items: list[Any] = value[key]
    return items
