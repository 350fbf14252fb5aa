"""Texts with a label each: tables with tabs (text, label), or JSON lines with ``text`` and ``label``."""

from collections.abc import Iterator
from pathlib import Path

from polyloom.data.records import LabelledText
from polyloom.errors import DataError
from polyloom.io.files import checked_text, ending_of, read_json_lines, read_lines


def read_labelled(path: Path) -> Iterator[LabelledText]:
    """Read labelled texts."""
    if ending_of(path) == ".jsonl":
        for number, row in read_json_lines(path):
            if not {"text", "label"} <= row.keys():
                raise DataError(path, number, 'expected {"text": "…", "label": "…"}.')
            text, label = (checked_text(row[key], path, number, name=key).strip() for key in ("text", "label"))
            yield LabelledText(text, label)
        return
    for number, line in read_lines(path):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 2 or not fields[1].strip():
            raise DataError(path, number, f"{len(fields)} columns; expected two: a text, a tab and its label.")
        yield LabelledText(fields[0].strip(), fields[1].strip())
