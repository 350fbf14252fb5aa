"""Choose the reader of a file by its format and by the kind of record that is wanted.

`register_reader` adds a format, or a kind of record to a known format.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from polyloom.data.kinds import RECORDS
from polyloom.data.readers.bitext import read_bitext
from polyloom.data.readers.choices import read_choices
from polyloom.data.readers.columns import column_header, read_columns
from polyloom.data.readers.conllu import Sentence, read_conllu
from polyloom.data.readers.conversations import read_conversations
from polyloom.data.readers.questions import read_questions, read_squad
from polyloom.data.readers.tables import read_json_records, read_labelled, read_pairs, table_header
from polyloom.data.readers.text import read_json_text, read_text
from polyloom.data.records import Kind, Record, Tagged, Text, Tree
from polyloom.errors import DataError, PolyloomError, suggest
from polyloom.io.files import File, as_file
from polyloom.registry import HINT, Registry

Reader = Callable[[File], Iterator[Record]]


def register_reader(name: str, kind: Kind, reader: Reader, *, endings: Sequence[str] = ()) -> Reader:
    """Register a function that reads records of one kind from files of one format.

    Args:
        name: Name of the format. ``path#name`` reads a file in this format, whatever its ending.
        kind: Kind of the records.
        reader: Function from a `File` to its records. It may yield them one by one. ``file.path`` is the path and
            ``file.columns`` the names after ``#``, if there are any.
        endings: Further endings of such files, such as ``.sexp``. ``.name`` is one already.

    Raises:
        PolyloomError: The format is read as this kind of record already, or the kind is unknown.
    """
    endings = list(dict.fromkeys((f".{name}", *endings)))
    if kind not in RECORDS:
        raise PolyloomError(f"reader {name!r}: unknown kind of record {kind!r}. {suggest(kind, RECORDS)}")
    for ending in endings:
        if not ending.startswith("."):
            raise PolyloomError(f"reader {name!r}: the ending {ending!r} should begin with a dot.")
        if kind in READERS.get(ending, {}):
            raise PolyloomError(f"reader {name!r}: {ending} files are read as {kind!r} already.")
    for ending in endings:
        READERS.setdefault(ending, {})[kind] = reader
    return reader


def parse_file(name: str) -> File | None:
    """Parse ``path#format``, ``path#column,column`` or ``path#format:column,column``.

    Returns:
        The file, or ``None`` if there is no such file, or nothing after ``#``.
    """
    path, sign, options = name.rpartition("#")
    if not sign or not Path(path).is_file():
        return None
    form, colon, columns = options.partition(":")
    if not colon:
        form, columns = (options, "") if f".{options}" in READERS else ("", options)
    elif f".{form}" not in READERS:
        raise DataError(name, None, f"unknown format {form!r}. {suggest(form, formats())} {HINT}")
    names = tuple(columns.split(",")) if columns else ()
    if not (form or names) or any(not column or column != column.strip() for column in names):
        what = "expected languages after #, such as #en,de, names of columns, such as #word,_,tag, or a format"
        raise DataError(name, None, f"{what}: {', '.join(formats())}. _ stands for a column to leave out.")
    return File(Path(path), form, names)


def read_records(source: Path | File, kind: Kind, *, direction: tuple[str, str] | None = None) -> Iterator[Record]:
    """Read a corpus as records of one kind.

    Args:
        source: The file; ``.gz`` and ``.xz`` may follow its ending.
        kind: The kind of record. Tags of CoNLL-U are UPOS.
        direction: For bitext: source and target language.

    Returns:
        The records, read as they are asked for.
    """
    file = as_file(source)
    reader = reader_of(file, kind)
    if file.columns and reader in _WITHOUT_COLUMNS:
        raise DataError(file.path, None, f"a {file.ending} file read as {kind} has no columns to name.")
    return read_bitext(file, direction) if reader is read_bitext else reader(file)


def reader_of(source: Path | File, kind: Kind) -> Reader:
    """Return the function that reads a file as records of one kind."""
    file = as_file(source)
    if file.ending not in READERS:
        hint = f"Name its format after #, such as {file.path}#tsv. {HINT}"
        raise DataError(file.path, None, f"unknown ending {file.ending!r}. {suggest(file.ending, READERS)} {hint}")
    readers = READERS[file.ending]
    if kind not in readers:
        what = f"a {file.ending} file has no records of kind {kind!r}. {suggest(kind, readers)}"
        raise DataError(file.path, None, what)
    return readers[kind]


def formats() -> list[str]:
    """List the names of the formats."""
    return [ending.removeprefix(".") for ending in READERS]


def header_of(source: Path | File, kind: Kind) -> str | None:
    """Return the first line of a file if it is a header, with the names of columns; else ``None``."""
    file = as_file(source)
    if kind in ("pair", "labelled") and file.ending in (".tsv", ".csv", ".txt"):
        return table_header(file, kind)
    if kind in ("tags", "text") and READERS.get(file.ending, {}).get(kind) in _COLUMNS.values():
        return column_header(file)
    return None


def _treebank(file: File) -> Iterator[Sentence]:
    """Read sentences with words; some treebanks are published without, for reasons of copyright."""
    for sentence in read_conllu(file.path):
        words = sentence.words
        if len(words) > 1 and set(words) == {"_"}:
            what = "all words are '_': the text is withheld. Fetch it as the treebank's README says."
            raise DataError(file.path, sentence.line, what)
        yield sentence


def _treebank_tags(file: File) -> Iterator[Tagged]:
    for sentence in _treebank(file):
        yield Tagged(sentence.words, sentence.upos)


def _treebank_trees(file: File) -> Iterator[Tree]:
    for sentence in _treebank(file):
        yield sentence.tree()


def _treebank_text(file: File) -> Iterator[Text]:
    for sentence in _treebank(file):
        yield Text(sentence.text)


def _column_text(file: File) -> Iterator[Text]:
    for sentence in read_columns(file):
        yield Text(" ".join(sentence.words))


_Readers = Mapping[str, Reader]
_COLUMNS: _Readers = {"tags": read_columns, "text": _column_text}
_TABLES: _Readers = {"pair": read_pairs, "labelled": read_labelled}
_FORMATS: Mapping[str, _Readers] = {
    ".conllu": {"tags": _treebank_tags, "tree": _treebank_trees, "text": _treebank_text},
    ".iob2": _COLUMNS,
    ".conll": _COLUMNS,
    ".bio": _COLUMNS,
    ".tsv": {**_COLUMNS, **_TABLES, "bitext": read_bitext},
    ".csv": _TABLES,
    ".jsonl": {
        "pair": read_pairs, "text": read_json_text, "bitext": read_bitext,
        "choices": read_choices, "question": read_questions, "conversation": read_conversations,
        **{kind: partial(read_json_records, kind=kind) for kind in ("tags", "tree", "labelled")},
    },
    ".txt": {"text": read_text, "tags": read_columns, **_TABLES},
    ".tmx": {"bitext": read_bitext},
    ".json": {"question": read_squad},
}  # fmt: skip
# These readers would silently ignore names of columns after `#`, so such names are an error.
_WITHOUT_COLUMNS: Sequence[Reader] = (
    read_bitext, _treebank_tags, _treebank_trees, _treebank_text, read_text, read_choices, read_questions, read_squad,
    read_conversations,
)  # fmt: skip
READERS: Registry[dict[str, Reader]] = Registry("format", ((ending, dict(kinds)) for ending, kinds in _FORMATS.items()))
