"""Raw text, one sentence or paragraph per line: plain, or the ``text`` of JSON lines."""

from collections.abc import Iterator
from pathlib import Path

from polyloom.data.records import Text
from polyloom.errors import DataError
from polyloom.io.files import checked_text, read_json_lines, read_lines


def read_text(path: Path) -> Iterator[Text]:
    """Read lines, stripped; empty ones are left out."""
    for _, line in read_lines(path):
        if text := line.strip():
            yield Text(text)


def read_json_text(path: Path) -> Iterator[Text]:
    """Read the ``text`` of every line of JSON, stripped; empty ones are left out."""
    for number, row in read_json_lines(path):
        if "text" not in row:
            raise DataError(path, number, f"no 'text' here. Known: {', '.join(map(repr, list(row)[:12])) or 'none'}.")
        if text := checked_text(row["text"], path, number, name="text").strip():
            yield Text(text)
