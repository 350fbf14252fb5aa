"""Which reader makes which kind of record out of which file: by the ending of its name, and what is asked for."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from polyloom.data.readers.bitext import read_bitext
from polyloom.data.readers.columns import read_columns
from polyloom.data.readers.conllu import Sentence, read_conllu
from polyloom.data.readers.labelled import read_labelled
from polyloom.data.readers.pairs import read_pairs
from polyloom.data.readers.text import read_json_text, read_text
from polyloom.data.records import Kind, Record, Tagged, Text, Tree
from polyloom.errors import DataError, suggest
from polyloom.io.files import ending_of


def read_records(path: Path, kind: Kind, *, direction: tuple[str, str] | None = None) -> Iterator[Record]:
    """Read a corpus as records of one kind.

    Args:
        path: The file; ``.gz`` and ``.xz`` may follow its ending.
        kind: What is wanted of it. Tags of CoNLL-U are UPOS.
        direction: Of bitext: source and target language.

    Returns:
        The records, read as they are asked for.
    """
    ending = ending_of(path)
    if ending not in _READERS:
        raise DataError(path, None, f"unknown ending {ending!r}. {suggest(ending, _READERS)}")
    readers = _READERS[ending]
    if kind not in readers:
        raise DataError(path, None, f"a {ending} file has no records of kind {kind!r}. {suggest(kind, readers)}")
    return read_bitext(path, direction) if kind == "bitext" else readers[kind](path)


def _treebank(path: Path) -> Iterator[Sentence]:
    """Sentences with words; some treebanks are published without, for reasons of copyright."""
    for sentence in read_conllu(path):
        words = sentence.words
        if len(words) > 1 and set(words) == {"_"}:
            what = "all words are '_': the text is withheld. Fetch it as the treebank's README says."
            raise DataError(path, sentence.line, what)
        yield sentence


def _treebank_tags(path: Path) -> Iterator[Tagged]:
    for sentence in _treebank(path):
        yield Tagged(sentence.words, sentence.upos)


def _treebank_trees(path: Path) -> Iterator[Tree]:
    for sentence in _treebank(path):
        yield sentence.tree()


def _treebank_text(path: Path) -> Iterator[Text]:
    for sentence in _treebank(path):
        yield Text(sentence.text)


def _column_text(path: Path) -> Iterator[Text]:
    for sentence in read_columns(path):
        yield Text(" ".join(sentence.words))


_Readers = Mapping[str, Callable[[Path], Iterator[Record]]]
_COLUMNS: _Readers = {"tags": read_columns, "text": _column_text}
_READERS: Mapping[str, _Readers] = {
    ".conllu": {"tags": _treebank_tags, "tree": _treebank_trees, "text": _treebank_text},
    ".iob2": _COLUMNS,
    ".conll": _COLUMNS,
    ".bio": _COLUMNS,
    ".tsv": {**_COLUMNS, "pair": read_pairs, "bitext": read_bitext, "labelled": read_labelled},
    ".csv": {"pair": read_pairs},
    ".jsonl": {"pair": read_pairs, "text": read_json_text, "bitext": read_bitext, "labelled": read_labelled},
    ".txt": {"text": read_text, "tags": read_columns, "pair": read_pairs},
    ".tmx": {"bitext": read_bitext},
}
