"""Read records from tables: TSV, CSV, JSON lines, data sets of the Hugging Face Hub. Columns are found by their names.

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
from polyloom.errors import DataError, Location, suggest
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
_INFERENCE = {name[0]: name for name in ("entailment", "contradiction", "neutral")}
# A cell between quotation marks, in which they are doubled and tabs may stand; or any other cell.
_CELL = re.compile(r'(?:^|\t)(?:"((?:[^"]|"")*)"(?=\t|$)|([^\t]*))')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class Layout(NamedTuple):
    """The columns of a table that hold the parts of a record."""

    places: Sequence[int]
    """The column of each part, counted from 0."""
    names: Sequence[str]
    """The name of each part's column in lower case; empty if the table has no names."""
    width: int
    """Number of columns."""
    has_header: bool
    """Whether the first line has the names."""


def choose_columns(
    names: Sequence[str],
    parts: Sequence[Sequence[str]],
    named: Sequence[str] = (),
    *,
    at: Location,
    first: bool = False,
) -> list[int]:
    """Choose the columns of a table that make up a record.

    Args:
        names: The names of the table's columns; case does not matter.
        parts: For each part of the record, the names that its column goes by, in lower case.
        named: The names that the user wrote after ``#``: of all parts in order, or of the last part only.
        at: Where the names are, for messages.
        first: Whether the first of several possible names is taken. By default several are an error.

    Returns:
        The column of each part, counted from 0.
    """
    header = [name.strip().casefold() for name in names]
    shown = [name[:40] for name in names]
    for name in named:
        if name.casefold() not in header:
            raise at.error(f"no column {name!r}. {suggest(name, shown)}")
    if len(named) not in (0, 1, len(parts)):
        shape = ", ".join(part[0] for part in parts)
        raise at.error(f"{len(named)} columns are named after #, but {len(parts)} are needed: {shape}.")
    chosen = []
    for usual in parts[: len(parts) - len(named)]:
        present = [name for name in usual if name in header]
        if len(present) > 1 and not first:
            raise at.error(f"which column? {', '.join(present)}. Write {at.source}#{present[0]}.")
        if not present:
            hint = "Name the columns after #."
            raise at.error(f"none of the columns {', '.join(usual)}. {suggest(usual[0], shown)} {hint}")
        chosen.append(present[0])
    return [header.index(name) for name in (*chosen, *map(str.casefold, named))]


def find_layout(
    cells: Sequence[str], parts: Sequence[Sequence[str]], columns: Sequence[str], at: Location, *, first: bool = False
) -> Layout | None:
    """Find the columns of a record by the first line of a file and by the names that the user wrote after ``#``.

    Args:
        cells: The first line.
        parts: For each part of the record, the names that its column goes by, in lower case.
        columns: The names after ``#``.
        at: Where the first line is, for messages.
        first: Whether the first of several possible names is taken. By default several are an error.

    Returns:
        The layout, or ``None`` if the columns have no names.
    """
    header = [cell.strip().casefold() for cell in cells]
    columns = [name.casefold() for name in columns]
    named = [name for name in columns if name != SKIPPED]
    if len(columns) > 1 and not set(named) <= set(header):
        # Names that the header does not have are names for all columns in their order: `#word,tag,_`.
        if len(columns) != len(header):
            what = (
                f"{len(columns)} columns are named after #, but there are {len(header)}. Write _ for one to leave out."
            )
            raise at.error(what)
        places = choose_columns(columns, parts, at=at)
        has_header = all(any(name in header for name in part) for part in parts)
        return Layout(places, ["" for _ in places], len(header), has_header=has_header)
    if named or any(name in header for part in parts for name in part):
        places = choose_columns(header, parts, named, at=at, first=first)
        return Layout(places, [header[place] for place in places], len(header), has_header=True)
    return None


def table_layout(cells: Sequence[str], kind: Kind, columns: Sequence[str], at: Location) -> Layout:
    """Find the columns of a record; without names, the table must have as many columns as the record has parts."""
    parts = COLUMNS[kind]
    layout = find_layout(cells, parts, columns, at, first=kind == "pair")
    if layout is None and len(cells) != len(parts):
        shape = ", ".join(part[0] for part in parts)
        what = f"{len(cells)} columns and no names. Without names in the first line, the columns are {shape}."
        raise at.error(f"{what} Name them after #, such as #{shape.replace(' ', '')}.")
    return layout or Layout(range(len(parts)), ["" for _ in parts], len(parts), has_header=False)


def read_table(source: Path | File, kind: Kind) -> Iterator[tuple[Location, Sequence[str], list[str]]]:
    """Read the columns of a record from a TSV or CSV file.

    Yields:
        Where a row is, the names of the columns (empty where there are none), and the cells, without white space around
        them.
    """
    file = as_file(source)
    layout: Layout | None = None
    for at, cells in table_rows(file):
        if layout is None:
            layout = table_layout(cells, kind, file.columns, at)
            if layout.has_header:
                continue
        if len(cells) != layout.width:
            raise at.error(f"{len(cells)} columns, but {layout.width} in the first line.")
        yield at, layout.names, [cells[place].strip() for place in layout.places]


def table_header(file: File, kind: Kind) -> str | None:
    """Return the first line of a file if it is a header with the names of columns; else ``None``."""
    for at, cells in table_rows(file):
        return "\t".join(cells) if table_layout(cells, kind, file.columns, at).has_header else None
    return None


def table_rows(file: File) -> Iterator[tuple[Location, list[str]]]:
    """Read the cells of each line that is not blank, with its location; CSV may also be separated by tabs."""
    # The first line with text decides: for .csv whether the cells are separated by commas or tabs, for tabs the number
    # of cells, beyond which a tab must stand inside of a cell.
    width = 0
    for number, line in read_lines(file.path):
        if not line.strip():
            continue
        if not width and file.ending == ".csv" and "\t" not in line:
            yield from _csv_rows(file, ";" if ";" in line and "," not in line else ",")
            return
        cells = line.split("\t")
        width = width or len(cells)
        if len(cells) > width:
            cells = [quoted.replace('""', '"') if quoted else plain for quoted, plain in _CELL.findall(line)]
        else:
            # Quotation marks around a cell belong to its text, unless it has doubled ones: a CSV writer doubles them.
            for place, cell in enumerate(cells):
                if cell.startswith('"') and (match := _QUOTED.fullmatch(cell)) and '""' in match[1]:
                    cells[place] = match[1].replace('""', '"')
        yield Location(file.path, number), cells


def _csv_rows(file: File, delimiter: str) -> Iterator[tuple[Location, list[str]]]:
    """Read CSV, whose cells may have line ends between quotation marks."""
    lines = (
        line.removeprefix("\ufeff") if number == 1 else line for number, line in read_lines(file.path, keep_ends=True)
    )
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for cells in rows:
            if any(cell.strip() for cell in cells):
                yield Location(file.path, number), cells
            number = rows.line_num + 1  # of the first line of the next row
    except csv.Error as error:
        raise DataError(file.path, number, f"not CSV: {error}.") from None


def read_labelled(source: Path | File) -> Iterator[LabelledText]:
    """Read texts with a label from TSV or CSV."""
    for at, _, (text, label) in read_table(source, "labelled"):
        if not label:
            raise at.error("no label.")
        yield LabelledText(text, label)


def read_pairs(source: Path | File) -> Iterator[Pair]:
    """Read pairs of texts (XNLI, PAWS-X, SICK and similar); those without a gold label (``-`` in SNLI) are left out.

    Labels of inference are brought to one form: ``ENTAILMENT`` is ``entailment``, and so is ``e`` between a premise and
    a hypothesis. All others stay as they are, whole numbers as text.
    """
    file = as_file(source)
    rows = _json_pairs(file) if file.ending == ".jsonl" else read_table(file, "pair")
    for at, names, (first, second, label) in rows:
        if not label:
            raise at.error("no label.")
        if label == "-":
            continue
        plain = label.casefold()
        if names[0] == "premise":  # elsewhere a label `e` may mean anything
            plain = _INFERENCE.get(plain, plain)
        yield Pair(first, second, plain if plain in _INFERENCE.values() else label)


def _json_pairs(file: File) -> Iterator[tuple[Location, Sequence[str], list[str]]]:
    """Read the columns of pairs from JSON lines, as `read_table` does."""
    for at, row in read_json_lines(file.path):
        keys = list(row)
        places = choose_columns(keys, COLUMNS["pair"], file.columns, at=at, first=True)
        names = [keys[place] for place in places]
        label = row[names[2]]
        if isinstance(label, int) and not isinstance(label, bool) and abs(label) < 1_000_000:
            row[names[2]] = str(label)
        cells = [checked_text(row[name], at, name=name).strip() for name in names]
        yield at, [name.casefold() for name in names], cells


def read_json_records(source: Path | File, kind: Kind) -> Iterator[Record]:
    """Read JSON lines that have the parts of a record by name; sentences without words are left out."""
    file = as_file(source)
    chosen: list[str] | None = None
    for at, row in read_json_lines(file.path):
        # The keys of the first line hold for all lines that have them.
        if chosen is None or not row.keys() >= set(chosen):
            keys = list(row)
            places = choose_columns(keys, COLUMNS[kind], file.columns, at=at)
            chosen = [keys[place] for place in places]
        cells = [_json_cell(row[key], at, name=key) for key in chosen]
        if kind not in ("tags", "tree") or cells[0] != []:
            yield make_record(kind, cells, at)


def _json_cell(value: Any, at: Location, *, name: str) -> Any:
    if isinstance(value, list):
        return [_json_cell(item, at, name=name) for item in value]
    return checked_text(value, at, name=name[:40]) if isinstance(value, str) else value


def make_record(kind: Kind, cells: Sequence[Any], at: Location) -> Record:
    """Make a record of the cells of a row: strings, or lists of strings and numbers."""
    if kind == "text" and isinstance(cells[0], str):
        return Text(cells[0])
    if kind == "labelled" and isinstance(cells[0], str):
        return LabelledText(cells[0].strip(), _label(cells[1], at))
    if kind == "pair" and isinstance(cells[0], str) and isinstance(cells[1], str):
        return Pair(cells[0], cells[1], _label(cells[2], at))
    if kind in ("tags", "tree") and all(isinstance(cell, list) for cell in cells):
        if len(set(map(len, cells))) > 1:
            raise at.error("the columns of a row differ in length.")
        words, labels = tuple(cells[0]), tuple(cells[-1])  # labels: tags, or the relations of a tree
        if not all(isinstance(value, str) for value in words + labels):
            raise at.error("words and labels must be text, or classes with names.")
        if kind == "tags":
            return Tagged(words, labels)
        # Heads are numbers or their digits: data sets of the Hub often have them as text, as CoNLL-U does.
        heads = cells[1]
        if not all(str(head).isdecimal() and int(head) <= len(heads) for head in heads):
            raise at.error(f"heads must be numbers from 0 to {len(heads)}.")
        return Tree(words, tuple(map(int, heads)), labels)
    raise at.error(f"this row is not a {kind} record.")


def _label(value: Any, at: Location) -> str:
    if not isinstance(value, str | int) or not str(value).strip():
        raise at.error(f"no label: {value!r:.40}.")
    return str(value).strip()
