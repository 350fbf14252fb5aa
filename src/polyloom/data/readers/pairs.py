"""Read pairs of texts with a label: XNLI, PAWS-X, SICK, FarsTail and similar, as TSV, CSV or JSON lines."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from polyloom.data.readers.tables import COLUMNS, choose_columns, read_table
from polyloom.data.records import Pair
from polyloom.errors import DataError
from polyloom.io.files import File, as_file, checked_text, read_json_lines

_INFERENCE = {name[0]: name for name in ("entailment", "contradiction", "neutral")}


def read_pairs(source: Path | File) -> Iterator[Pair]:
    """Read pairs; those without a gold label (``-`` in SNLI and MultiNLI) are left out.

    Labels of inference are brought to one form: ``ENTAILMENT`` is ``entailment``, and so is ``e`` between a premise and
    a hypothesis. All others stay as they are, whole numbers as text.
    """
    file = as_file(source)
    for number, names, (first, second, label) in (
        _json_rows(file) if file.ending == ".jsonl" else read_table(file, "pair")
    ):
        if not label:
            raise DataError(file.path, number, "no label.")
        if label == "-":
            continue
        plain = label.casefold()
        if names[0] == "premise":
            plain = _INFERENCE.get(plain, plain)
        yield Pair(first, second, plain if plain in _INFERENCE.values() else label)


def _json_rows(file: File) -> Iterator[tuple[int, Sequence[str], list[str]]]:
    for number, row in read_json_lines(file.path):
        keys = list(row)
        places = choose_columns(keys, COLUMNS["pair"], file.columns, source=file.path, line=number, first=True)
        names = [keys[place] for place in places]
        label = row[names[2]]
        if isinstance(label, int) and not isinstance(label, bool) and abs(label) < 1_000_000:
            row[names[2]] = str(label)
        fields = [checked_text(row[name], file.path, number, name=name).strip() for name in names]
        yield number, [name.casefold() for name in names], fields
