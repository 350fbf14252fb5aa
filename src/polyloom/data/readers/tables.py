"""Read records from tables whose columns have names: TSV, CSV, JSON lines, data sets of the Hugging Face Hub.

The first line of a TSV or CSV file is a header if it has the name of a column that is looked for. Quotation marks
around a cell of TSV are removed where a CSV writer must have added them: around doubled marks or a tab. All others
belong to the text.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyloom.data.records import Kind, LabelledText, Pair, Record, Tagged, Text, Tree
from polyloom.errors import DataError, suggest
from polyloom.io.files import File, as_file, checked_text, read_json_lines, read_lines

# By kind: for each part of a record, the names that its column goes by.
COLUMNS: Mapping[Kind, Sequence[Sequence[str]]] = {
    "text": (("text", "sentence", "content"),),
    "labelled": (("text", "sentence", "content"), ("label", "gold_label", "class")),
    "tags": (("tokens", "words"), ("tags", "ner_tags", "upos", "pos_tags", "upos_tags", "labels")),
    "tree": (("tokens", "words"), ("head", "heads"), ("deprel", "deprels", "relations")),
    "pair": (
        ("premise", "sentence1", "sentence_a"),
        ("hypothesis", "sentence2", "sentence_b"),
        ("gold_label", "label", "entailment_judgment", "entailment_label"),
    ),
}
SKIPPED = "_"

_CELL = re.compile(r'(?:^|\t)(?:"((?:[^"]|"")*)"(?=\t|$)|([^\t]*))')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class Layout(NamedTuple):
    """The columns of a table that hold the parts of a record.

    Attributes:
        places: The column of each part, counted from 0.
        names: The name of each part's column in lower case; empty if the table has no names.
        width: Number of columns.
        has_header: Whether the first line has the names.
    """

    places: Sequence[int]
    names: Sequence[str]
    width: int
    has_header: bool


def choose_columns(
    names: Sequence[str],
    parts: Sequence[Sequence[str]],
    wanted: Sequence[str] = (),
    *,
    source: object,
    line: int | None = None,
    first: bool = False,
) -> list[int]:
    """Choose the columns of a table that make up a record.

    Args:
        names: The names of the table's columns; case does not matter.
        parts: For each part of the record, the names that its column goes by, in lower case.
        wanted: The names that the user gave: of all parts in order, or of the last part only.
        source: The table, for messages.
        line: The line of the names, for messages.
        first: Whether the first of several possible names is taken. By default several are an error.

    Returns:
        The column of each part, counted from 0.
    """
    folded = [name.strip().casefold() for name in names]
    listed = [name[:40] for name in names]
    for name in wanted:
        if name.casefold() not in folded:
            raise DataError(source, line, f"no column {name!r}. {suggest(name, listed)}")
    if len(wanted) not in (0, 1, len(parts)):
        shape = ", ".join(part[0] for part in parts)
        raise DataError(source, line, f"{len(wanted)} columns are named after #, but {len(parts)} are needed: {shape}.")
    chosen = []
    for known in parts[: len(parts) - len(wanted)]:
        present = [name for name in known if name in folded]
        if len(present) > 1 and not first:
            raise DataError(source, line, f"which column? {', '.join(present)}. Write {source}#{present[0]}.")
        if not present:
            hint = "Name the columns after #."
            raise DataError(source, line, f"none of the columns {', '.join(known)}. {suggest(known[0], listed)} {hint}")
        chosen.append(present[0])
    return [folded.index(name) for name in (*chosen, *map(str.casefold, wanted))]


def find_layout(
    datasets: Sequence[str], parts: Sequence[Sequence[str]], file: File, *, line: int, first: bool = False
) -> Layout | None:
    """Find the columns of a record by the first line of a file and by the names that the user gave.

    Returns:
        The layout, or ``None`` if the columns have no names.
    """
    header = [dataset.strip().casefold() for dataset in datasets]
    given = [name.casefold() for name in file.columns]
    wanted = [name for name in given if name != SKIPPED]
    if len(given) > 1 and not set(wanted) <= set(header):  # names for columns that have none
        if len(given) != len(header):
            what = f"{len(given)} columns are named after #, but there are {len(header)}. Write _ for one to leave out."
            raise DataError(file.path, line, what)
        places = choose_columns(given, parts, source=file.path, line=line)
        named = all(any(name in header for name in part) for part in parts)
        return Layout(places, ["" for _ in places], len(header), has_header=named)
    if wanted or any(name in header for part in parts for name in part):
        places = choose_columns(header, parts, wanted, source=file.path, line=line, first=first)
        return Layout(places, [header[place] for place in places], len(header), has_header=True)
    return None


def table_layout(datasets: Sequence[str], kind: Kind, file: File, *, line: int) -> Layout:
    """Find the columns of a record; without names, the table must have as many columns as the record has parts."""
    parts = COLUMNS[kind]
    layout = find_layout(datasets, parts, file, line=line, first=kind == "pair")
    if layout is None and len(datasets) != len(parts):
        shape = ", ".join(part[0] for part in parts)
        what = f"{len(datasets)} columns and no names. Without names in the first line, the columns are {shape}."
        raise DataError(file.path, line, f"{what} Name them after #, such as #{shape.replace(' ', '')}.")
    return layout or Layout(range(len(parts)), ["" for _ in parts], len(parts), has_header=False)


def read_table(source: Path | File, kind: Kind) -> Iterator[tuple[int, Sequence[str], list[str]]]:
    """Read the columns of a record from a TSV or CSV file.

    Yields:
        The number of a line, the names of the columns (empty where there are none), and the cells, without white space
        around them.
    """
    file = as_file(source)
    layout: Layout | None = None
    for number, datasets in table_rows(file):
        if layout is None:
            layout = table_layout(datasets, kind, file, line=number)
            if layout.has_header:
                continue
        if len(datasets) != layout.width:
            raise DataError(file.path, number, f"{len(datasets)} columns, but {layout.width} in the first line.")
        yield number, layout.names, [datasets[place].strip() for place in layout.places]


def table_header(file: File, kind: Kind) -> str | None:
    """Return the first line of a file if it is a header with the names of columns; else ``None``."""
    for number, datasets in table_rows(file):
        return "\t".join(datasets) if table_layout(datasets, kind, file, line=number).has_header else None
    return None


def table_rows(file: File) -> Iterator[tuple[int, list[str]]]:
    """Read the cells of each line that is not blank, with its number; CSV may also be separated by tabs."""
    lines = ((number, line) for number, line in read_lines(file.path) if line.strip())
    number, line = next(lines, (0, ""))
    if not number:
        return
    if file.ending == ".csv" and "\t" not in line:
        yield from _csv_rows(file, ";" if ";" in line and "," not in line else ",")
        return
    width = line.count("\t") + 1
    yield number, _tsv_cells(line, width)
    for number, line in lines:
        yield number, _tsv_cells(line, width)


def _csv_rows(file: File, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Read CSV, whose cells may have line ends between quotation marks."""
    lines = (
        line.removeprefix("\ufeff") if number == 1 else line for number, line in read_lines(file.path, keep_ends=True)
    )
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for datasets in rows:
            if any(dataset.strip() for dataset in datasets):
                yield number, datasets
            number = rows.line_num + 1
    except csv.Error as error:
        raise DataError(file.path, number, f"not CSV: {error}.") from None


def _tsv_cells(line: str, width: int) -> list[str]:
    """Split at tabs; only where that makes too many cells, tabs may stand between quotation marks."""
    datasets = line.split("\t")
    if len(datasets) > width:
        return [quoted.replace('""', '"') if quoted else plain for quoted, plain in _CELL.findall(line)]
    return [_unquoted(dataset) if dataset.startswith('"') else dataset for dataset in datasets]


def _unquoted(dataset: str) -> str:
    match = _QUOTED.fullmatch(dataset)
    return match[1].replace('""', '"') if match and '""' in match[1] else dataset


def read_labelled(source: Path | File) -> Iterator[LabelledText]:
    """Read texts with a label from TSV or CSV."""
    path = as_file(source).path
    for number, _, (text, label) in read_table(source, "labelled"):
        if not label:
            raise DataError(path, number, "no label.")
        yield LabelledText(text, label)


def read_json_records(source: Path | File, kind: Kind) -> Iterator[Record]:
    """Read JSON lines that have the parts of a record by name; sentences without words are left out."""
    file = as_file(source)
    places: list[str] | None = None
    for number, row in read_json_lines(file.path):
        if places is None or not row.keys() >= set(places):
            names = list(row)
            places = [
                names[at] for at in choose_columns(names, COLUMNS[kind], file.columns, source=file.path, line=number)
            ]
        datasets = [_json_cell(row[name], file.path, number, name=name) for name in places]
        if kind not in ("tags", "tree") or datasets[0] != []:
            yield make_record(kind, datasets, source=file.path, number=number)


def _json_cell(value: Any, path: Path, number: int, *, name: str) -> Any:
    if isinstance(value, list):
        return [_json_cell(item, path, number, name=name) for item in value]
    return checked_text(value, path, number, name=name[:40]) if isinstance(value, str) else value


def make_record(kind: Kind, datasets: Sequence[Any], *, source: object, number: int) -> Record:
    """Make a record of the cells of a row: strings, or lists of strings and numbers."""
    if kind == "text" and isinstance(datasets[0], str):
        return Text(datasets[0])
    if kind == "labelled" and isinstance(datasets[0], str):
        return LabelledText(datasets[0].strip(), _label(datasets[1], source, number))
    if kind == "pair" and isinstance(datasets[0], str) and isinstance(datasets[1], str):
        return Pair(datasets[0], datasets[1], _label(datasets[2], source, number))
    if kind in ("tags", "tree") and all(isinstance(dataset, list) for dataset in datasets):
        if len(set(map(len, datasets))) > 1:
            raise DataError(source, number, "the columns of a row differ in length.")
        if all(isinstance(value, str) for dataset in (datasets[0], datasets[-1]) for value in dataset):
            words, last = tuple(datasets[0]), tuple(datasets[-1])
            return Tagged(words, last) if kind == "tags" else Tree(words, _heads(datasets[1], source, number), last)
        raise DataError(source, number, "words and labels must be text, or classes with names.")
    raise DataError(source, number, f"this row is not a {kind} record.")


def _label(value: Any, source: object, number: int) -> str:
    if not isinstance(value, str | int) or not str(value).strip():
        raise DataError(source, number, f"no label: {value!r:.40}.")
    return str(value).strip()


def _heads(heads: Sequence[Any], source: object, number: int) -> tuple[int, ...]:
    if not all(str(head).isdecimal() and int(head) <= len(heads) for head in heads):
        raise DataError(source, number, f"heads must be numbers from 0 to {len(heads)}.")
    return tuple(map(int, heads))
