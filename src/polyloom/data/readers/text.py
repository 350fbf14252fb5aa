"""Read raw text, one sentence or paragraph per line: plain, or the ``text`` of JSON lines."""

from collections.abc import Iterator
from pathlib import Path

from polyloom.data.records import Text
from polyloom.io.files import File, as_file, checked_text, read_json_lines, read_lines


def read_text(source: Path | File) -> Iterator[Text]:
    """Read lines without the white space around them; empty lines are left out."""
    for _, line in read_lines(as_file(source).path):
        if text := line.strip():
            yield Text(text)


def read_json_text(source: Path | File) -> Iterator[Text]:
    """Read the ``text`` of every line of JSON, or the column that was named; empty texts are left out."""
    file = as_file(source)
    name = file.columns[0] if file.columns else "text"
    for at, row in read_json_lines(file.path):
        if name not in row:
            known = ", ".join(map(repr, list(row)[:12])) or "none"
            raise at.error(f"no {name!r} here. Known: {known}.")
        if text := checked_text(row[name], at, name=name).strip():
            yield Text(text)
