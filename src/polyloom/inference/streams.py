r"""Answers as a filter gives them: sentences are taken as they arrive and answered in order, before the input ends.

Formats of sentences, in both directions but for ``text``:

* ``text``: a sentence per line, words between spaces. Nothing is tokenized here. For mt, in and out: a text per line.
* ``columns``: a word per line, in the first column, and a blank line behind every sentence. For nli, in:
  ``premise<TAB>hypothesis``, out: the label.
* ``conllu``: CoNLL-U. Whatever is not predicted stays as it was, byte for byte.
* ``jsonl``: objects with ``words`` or ``text`` (for nli ``premise`` and ``hypothesis``), which get further keys.

A blank line where a sentence could begin is an empty sentence, and has an (empty) answer like any other.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyloom.data.readers.conllu import Row, Sentence, parse_conllu, write_sentence
from polyloom.data.records import Bitext, Pair, Record, Tagged
from polyloom.errors import DataError, PolyloomError, suggest
from polyloom.inference.predictor import WINDOW
from polyloom.io.files import LIMITS, checked_text, decoded, json_object

Format = Literal["text", "columns", "conllu", "jsonl"]
STDIN = Path("stdin")
MAX_WORDS, MAX_LETTERS = 2_000, 50_000  # of a sentence: all its words are held in memory at once, in pairs to parse
_CHUNK = 1 << 16
_OUTPUTS: Mapping[str, Mapping[str, str]] = {  # by task and input: what is written by default
    "pos": {"text": "columns", "columns": "columns", "conllu": "conllu", "jsonl": "jsonl"},
    "ner": {"text": "columns", "columns": "columns", "conllu": "columns", "jsonl": "jsonl"},
    "dep": {"text": "conllu", "columns": "conllu", "conllu": "conllu", "jsonl": "jsonl"},
    "nli": {"columns": "columns", "jsonl": "jsonl"},
    "mt": {"text": "text", "jsonl": "jsonl"},
}
_KEYS = {
    "pos": ("tags",), "ner": ("tags",), "dep": ("heads", "relations"), "nli": ("label",), "mt": ("translation",),
}  # fmt: skip


class Line(NamedTuple):
    """A line with its number and its end."""

    number: int
    text: str


@dataclass(frozen=True)
class StreamItem:
    """One sentence or pair of the input.

    Attributes:
        line: Number of its first line.
        record: What is asked; ``None`` for an empty sentence.
        source: What it was made from: an object of JSON, a sentence of CoNLL-U, or the raw text.
    """

    line: int
    record: Record | None
    source: dict[str, Any] | Sentence | str

    @property
    def words(self) -> tuple[str, ...]:
        """Its words, if it has some."""
        return self.record.words if isinstance(self.record, Tagged) else ()


def choose_formats(task: str, given: str | None, wanted: str | None) -> tuple[str, str]:
    """The formats of input and output for a task, from what was asked for."""
    if task == "mlm":
        raise PolyloomError("mlm: there is nothing to predict. polyloom evaluate gives perplexities.")
    if task not in _OUTPUTS:
        raise PolyloomError(f"task {task!r}: cannot be predicted. {suggest(task, _OUTPUTS)}")
    inputs = _OUTPUTS[task]
    source = given or next(iter(inputs))
    if source not in inputs:
        raise PolyloomError(f"--input {source}: not for {task}. {suggest(source, inputs)}")
    target, outputs = wanted or inputs[source], sorted({*inputs.values(), *(() if task == "mt" else ("columns",))})
    if target not in outputs:
        raise PolyloomError(f"--output {target}: has no place for answers of {task}. {suggest(target, outputs)}")
    return source, target


def predict_stream(
    stream: BufferedIOBase, task: str, *, formats: tuple[str, str], answer: Callable[[list[Record]], Iterable[Any]]
) -> Iterator[str]:
    """Answer what arrives.

    Args:
        stream: Bytes; nothing is waited for as long as there is something to answer.
        task: Of pos, ner, dep and nli.
        formats: Of input and output, from `choose_formats`.
        answer: Answers some records.

    Yields:
        Text to write at once.
    """
    source, target = formats
    write = _WRITERS[target]
    for group in _grouped(_items(read_available_lines(stream), task, source)):
        answers = iter(answer([item.record for item in group if item.record is not None]))
        yield "".join(write(item, _named(task, item, answers)) for item in group)


def read_available_lines(stream: BufferedIOBase) -> Iterator[Line | None]:
    """Lines as they come; ``None`` where there are no more for the moment."""
    rest, number = b"", 0
    while chunk := stream.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            number += 1
            yield Line(number, decoded(raw, STDIN, number) + "\n")
        if len(rest) >= LIMITS.line_bytes:
            raise DataError(STDIN, number + 1, f"a line of more than {LIMITS.line_bytes} bytes.")
        yield None
    if rest:
        yield Line(number + 1, decoded(rest, STDIN, number + 1))


def _grouped(items: Iterator[StreamItem | None]) -> Iterator[list[StreamItem]]:
    """What can be answered now; before a mistake in the input, all that stood before it."""
    waiting: list[StreamItem] = []
    try:
        for item in items:
            if item is not None:
                waiting.append(item)
            if waiting and (item is None or len(waiting) == WINDOW):
                yield waiting
                waiting = []
    except DataError:
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


def _named(task: str, item: StreamItem, answers: Iterator[Any]) -> dict[str, Any]:
    """The answer to an item by the names of its parts."""
    if item.record is None:
        return dict.fromkeys(_KEYS[task], {"nli": None, "mt": ""}.get(task, []))
    answer = next(answers)
    values = answer if task == "dep" else (answer,)
    return dict(zip(_KEYS[task], values, strict=True))


# -- reading -----------------------------------------------------------------------------------------------------------


def _items(lines: Iterable[Line | None], task: str, source: str) -> Iterator[StreamItem | None]:
    read = {"nli": _PAIR_READERS, "mt": _TEXT_READERS}.get(task, _READERS)[source]
    for unit in _units(lines, blocks=task != "nli" and source in ("columns", "conllu")):
        if unit is None:
            yield None
        elif not _content(unit[0]).strip():
            yield StreamItem(unit[0].number, None, unit[0].text)
        else:
            yield read(unit)


def _units(lines: Iterable[Line | None], *, blocks: bool) -> Iterator[list[Line] | None]:
    """Single lines, or blocks of lines up to a blank one, which is the last of its block."""
    unit: list[Line] = []
    size = 0
    for line in lines:
        if line is None:
            yield None
            continue
        unit.append(line)
        size += len(line.text)
        if size > LIMITS.line_bytes:
            raise DataError(STDIN, line.number, f"a sentence of more than {LIMITS.line_bytes} letters.")
        if not blocks or not _content(line).strip():
            yield unit
            unit, size = [], 0
    if unit:
        yield unit


def _content(line: Line) -> str:
    text = line.text.removesuffix("\n").removesuffix("\r")
    return text.removeprefix("\ufeff") if line.number == 1 else text


def _word_item(line: int, words: Sequence[str], source: dict[str, Any] | Sentence | str) -> StreamItem:
    letters = sum(map(len, words))
    if len(words) > MAX_WORDS or letters > MAX_LETTERS:
        found = f"a sentence of {len(words):,} words and {letters:,} letters. "
        limit = f"At most {MAX_WORDS:,} and {MAX_LETTERS:,} are answered: split it into sentences."
        raise DataError(STDIN, line, found + limit)
    return StreamItem(line, Tagged(tuple(words), ()) if words else None, source)


def _read_text(unit: Sequence[Line]) -> StreamItem:
    (line,) = unit
    if line.text.count("\t") == 9 or (line.number == 1 and line.text.startswith('{"')):
        looks = "CoNLL-U. Add --input conllu." if "\t" in line.text else "JSON. Add --input jsonl."
        raise DataError(STDIN, line.number, f"this is not plain text but {looks}")
    return _word_item(line.number, _content(line).split(), line.text)


def _read_columns(unit: Sequence[Line]) -> StreamItem:
    words = []
    for line in unit:
        text = _content(line)
        if not text.strip():
            break
        words.append(text.split("\t" if "\t" in text else None, maxsplit=1)[0])
        if not words[-1].strip():
            raise DataError(STDIN, line.number, "no word in the first column.")
    return _word_item(unit[0].number, words, "")


def _read_conllu(unit: Sequence[Line]) -> StreamItem:
    (sentence,) = parse_conllu(unit, STDIN)
    return _word_item(sentence.line, sentence.words, sentence)


def _read_json(unit: Sequence[Line]) -> StreamItem:
    number = unit[0].number
    found = json_object(_content(unit[0]), STDIN, number)
    if isinstance(found.get("words"), list):
        words = [checked_text(word, STDIN, number, name="words") for word in found["words"]]
        if any(not word.strip() or set(word) & set("\t\n\r") for word in words):
            raise DataError(STDIN, number, "a word is empty, or has a tab or a line end in it.")
    elif "text" in found:
        words = checked_text(found["text"], STDIN, number, name="text").split()
    else:
        raise DataError(STDIN, number, 'expected {"words": ["…", …]} or {"text": "…"}.')
    return _word_item(number, words, found)


def _read_pair(unit: Sequence[Line]) -> StreamItem:
    fields = _content(unit[0]).split("\t")
    if len(fields) != 2:
        what = f"{len(fields)} column{'s' if len(fields) > 1 else ''}, not 2: a premise, a tab and a hypothesis."
        raise DataError(STDIN, unit[0].number, what)
    return StreamItem(unit[0].number, Pair(fields[0].strip(), fields[1].strip(), ""), "")


def _read_json_pair(unit: Sequence[Line]) -> StreamItem:
    number = unit[0].number
    found = json_object(_content(unit[0]), STDIN, number)
    if not {"premise", "hypothesis"} <= found.keys():
        raise DataError(STDIN, number, 'expected {"premise": "…", "hypothesis": "…"}.')
    first, second = (checked_text(found[name], STDIN, number, name=name) for name in ("premise", "hypothesis"))
    return StreamItem(number, Pair(first, second, ""), found)


def _read_source(unit: Sequence[Line]) -> StreamItem:
    return _to_translate(_content(unit[0]), unit[0].number, "")


def _read_json_source(unit: Sequence[Line]) -> StreamItem:
    number = unit[0].number
    found = json_object(_content(unit[0]), STDIN, number)
    if "text" not in found:
        raise DataError(STDIN, number, 'expected {"text": "…"}.')
    return _to_translate(checked_text(found["text"], STDIN, number, name="text"), number, found)


def _to_translate(text: str, number: int, source: dict[str, Any] | str) -> StreamItem:
    if len(text) > MAX_LETTERS:
        raise DataError(STDIN, number, f"{len(text):,} letters. At most {MAX_LETTERS:,} are translated: split it.")
    return StreamItem(number, Bitext(text.strip(), "") if text.strip() else None, source)


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_text(_item: StreamItem, answer: Mapping[str, Any]) -> str:
    return f"{answer['translation']}\n"


def _write_columns(item: StreamItem, answer: Mapping[str, Any]) -> str:
    if "label" in answer:
        return f"{answer['label'] or ''}\n"
    rows = zip(item.words, *answer.values(), strict=True)
    return "".join("\t".join(map(str, row)) + "\n" for row in rows) + "\n"


def _write_conllu(item: StreamItem, answer: Mapping[str, Any]) -> str:
    if item.record is None:
        return "\r\n" if isinstance(item.source, str) and item.source.endswith("\r\n") else "\n"
    sentence = item.source if isinstance(item.source, Sentence) else _sentence(item.words)
    names = {"tags": "upos", "heads": "heads", "relations": "relations"}
    return write_sentence(sentence.with_predictions(**{names[key]: values for key, values in answer.items()}))


def _sentence(words: Sequence[str]) -> Sentence:
    rows = tuple(Row(str(number), word, *"_" * 8) for number, word in enumerate(words, start=1))
    return Sentence((f"# text = {' '.join(words)}",), rows)


def _write_json(item: StreamItem, answer: Mapping[str, Any]) -> str:
    kept = item.source if isinstance(item.source, dict) else {}
    words = {} if {"label", "translation"} & answer.keys() or "words" in kept else {"words": item.words}
    return json.dumps({**kept, **words, **answer}, ensure_ascii=False) + "\n"


_Reader = Callable[[Sequence[Line]], StreamItem]
_READERS: Mapping[str, _Reader] = {
    "text": _read_text, "columns": _read_columns, "conllu": _read_conllu, "jsonl": _read_json,
}  # fmt: skip
_PAIR_READERS: Mapping[str, _Reader] = {"columns": _read_pair, "jsonl": _read_json_pair}
_TEXT_READERS: Mapping[str, _Reader] = {"text": _read_source, "jsonl": _read_json_source}
_WRITERS: Mapping[str, Callable[[StreamItem, Mapping[str, Any]], str]] = {
    "text": _write_text, "columns": _write_columns, "conllu": _write_conllu, "jsonl": _write_json,
}  # fmt: skip
