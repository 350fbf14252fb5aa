"""Sentence pairs with a label: XNLI, PAWS-X, SICK, FarsTail and their like, as tables with tabs or as JSON lines.

A table's columns are found by the names in its first line; without names it must have three: two sentences and the
label. Quotation marks around a cell are taken off where a CSV writer must have set them: around doubled marks or a tab.
All others belong to the sentence, however lonely.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyloom.data.records import Pair
from polyloom.errors import DataError
from polyloom.io.files import checked_text, ending_of, read_json_lines, read_lines

_FIRST = ("premise", "sentence1", "sentence_a")
_SECOND = ("hypothesis", "sentence2", "sentence_b")
_LABEL = ("gold_label", "label", "entailment_judgment", "entailment_label")
_CELL = re.compile(r'(?:^|\t)(?:"((?:[^"]|"")*)"(?=\t|$)|([^\t]*))')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_INFERENCE = {name[0]: name for name in ("entailment", "contradiction", "neutral")}


def read_pairs(path: Path) -> Iterator[Pair]:
    """Read pairs; those without a gold label (``-`` in SNLI and MultiNLI) are left out.

    Labels of inference are brought to one form: ``ENTAILMENT`` is ``entailment``, and so is ``e`` between a premise and
    a hypothesis. All others stay as they are, whole numbers as text.
    """
    json = ending_of(path) == ".jsonl"
    for number, names, fields in _json_rows(path) if json else _table_rows(path):
        first, second, label = (field.strip() for field in fields)
        if not label:
            raise DataError(path, number, "no label.")
        if label == "-":
            continue
        plain = label.casefold()
        if names[0] == "premise":
            plain = _INFERENCE.get(plain, plain)
        yield Pair(first, second, plain if plain in _INFERENCE.values() else label)


def _json_rows(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    for number, row in read_json_lines(path):
        by_name = {key.casefold(): value for key, value in row.items()}
        names = _names(by_name, path, number)
        label: Any = by_name[names[2]]
        if isinstance(label, int) and not isinstance(label, bool) and abs(label) < 1_000_000:
            by_name[names[2]] = str(label)
        yield number, names, [checked_text(by_name[name], path, number, name=name) for name in names]


def _table_rows(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    width = 0
    names: list[str] = []
    places: list[int] = []
    for number, line in read_lines(path):
        if not line.strip():
            continue
        if not width:
            header = [field.strip().casefold() for field in line.split("\t")]
            width = len(header)
            if any(field in _FIRST + _SECOND + _LABEL for field in header):
                names = _names(dict.fromkeys(header), path, number)
                places = [header.index(name) for name in names]
                continue
            if width != 3:
                what = (
                    f"{width} columns and no names. A table has names in its first line, or two sentences and a label"
                )
                raise DataError(path, number, f"{what}, separated by tabs.")
            names, places = ["", "", ""], [0, 1, 2]
        fields = _fields(line, width)
        if len(fields) != width:
            raise DataError(path, number, f"{len(fields)} columns, but {width} in the first line.")
        yield number, names, [fields[place] for place in places]


def _names(row: dict[str, Any], path: Path, number: int) -> list[str]:
    """Which of the known names the two sentences and the label have."""
    found = []
    for known in (_FIRST, _SECOND, _LABEL):
        name = next((name for name in known if name in row), None)
        if name is None:
            there = ", ".join(repr(name[:40]) for name in list(row)[:12]) or "none"
            raise DataError(path, number, f"none of the columns {', '.join(known)}. Known: {there}.")
        found.append(name)
    return found


def _fields(line: str, width: int) -> list[str]:
    """Split at tabs; only where that makes too many cells, tabs may stand between quotation marks."""
    fields = line.split("\t")
    if len(fields) > width:
        return [quoted.replace('""', '"') if quoted else plain for quoted, plain in _CELL.findall(line)]
    return [_unquoted(field) if field.startswith('"') else field for field in fields]


def _unquoted(field: str) -> str:
    match = _QUOTED.fullmatch(field)
    return match[1].replace('""', '"') if match and '""' in match[1] else field
