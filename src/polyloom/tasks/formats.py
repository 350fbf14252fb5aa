"""Helpers of tasks to read inputs from a stream and to write predictions to one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polyloom.data.readers.conllu import Sentence
from polyloom.data.records import Record
from polyloom.errors import DataError
from polyloom.io.files import checked_text, json_object
from polyloom.io.plain_json import to_json

Format = Literal["text", "tokenized", "columns", "conllu", "jsonl"]
STDIN = Path("stdin")
MAX_LETTERS = 50_000  # of one input, which is held in memory at once


class Line(NamedTuple):
    """A line with its number and its line end.

    Attributes:
        number: Its number, from 1.
        text: Its text. Of a line that is no text: a single character in its place.
        error: Why it is no text: not UTF-8, too long.
    """

    number: int
    text: str
    error: DataError | None = None

    @property
    def content(self) -> str:
        """The text without its line end and, in the first line, without a byte order mark."""
        text = self.text.removesuffix("\n").removesuffix("\r")
        return text.removeprefix("\ufeff") if self.number == 1 else text


@dataclass(frozen=True)
class StreamItem:
    """One input of a stream.

    Attributes:
        line: Number of its first line.
        record: The record to predict; ``None`` for an empty line or sentence.
        source: What it was read from: a JSON object, a sentence of CoNLL-U, or the raw text.
        offsets: Where each word begins and ends in the text, if words were found in raw text.
        error: Why there is no record, if the input is wrong.
    """

    line: int
    record: Record | None
    source: dict[str, Any] | Sentence | str
    offsets: tuple[tuple[int, int], ...] = ()
    error: str = ""


def read_json(lines: Sequence[Line], *keys: str) -> dict[str, Any]:
    """Read a JSON object and check that it has text under the given keys."""
    number = lines[0].number
    entry = json_object(lines[0].content, STDIN, number)
    if not set(keys) <= entry.keys():
        expected = ", ".join(f'"{key}": "…"' for key in keys)
        raise DataError(STDIN, number, f"expected {{{expected}}}.")
    return entry | {key: checked_text(entry[key], STDIN, number, name=key) for key in keys}


def read_whole_text(lines: Sequence[Line], form: Format) -> tuple[str, StreamItem]:
    """Read one text: a line, or the ``text`` of a JSON object; the item has no record yet."""
    number = lines[0].number
    source = read_json(lines, "text") if form == "jsonl" else ""
    text = source["text"] if isinstance(source, dict) else lines[0].content
    if len(text) > MAX_LETTERS:
        raise DataError(STDIN, number, f"{len(text):,} letters. At most {MAX_LETTERS:,} are allowed: split the text.")
    return text.strip(), StreamItem(number, None, source)


def write_json(item: StreamItem, **values: Any) -> str:
    """Write the object that was read, with further keys."""
    kept = item.source if isinstance(item.source, dict) else {}
    return to_json({**kept, **values}) + "\n"
