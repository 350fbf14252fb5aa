"""Read tagged words in columns, one word per line and a blank line between sentences: WikiANN, CoNLL, MasakhaNER, UNER.

The first line with a word decides the layout of the whole file; a line that differs from it is an error.

* ``token<TAB>tag`` (WikiANN as in XTREME), also with the language before every token (``yo:Pópù<TAB>B-PER``, mmner).
* ``token … tag`` separated by single spaces (MasakhaNER, CoNLL 2002 and 2003): first and last column.
* ``token<TAB>pos<TAB>chunk<TAB>tag`` (CoNLL 2003 with tabs): first and last column.
* ``id<TAB>token<TAB>tag…`` with comments, in files named ``.iob2`` (Universal NER). There ``-`` is an empty column,
  thus no entity. Elsewhere a ``#`` is a word like any other.
* Any number of columns, if they are named: by a header, which has known names in all columns, or after ``#``.

Tags are kept as they are, also impossible sequences: the metric decides how to read those.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from polyloom.data.readers.tables import Layout, find_layout
from polyloom.data.records import Tagged
from polyloom.errors import DataError, Location
from polyloom.io.files import LIMITS, File, as_file, read_lines

_LANGUAGE = re.compile(r"([a-z]{2,3}(?:-[a-z]+)*:).+", re.DOTALL)
_PREFIXED = re.compile(r"([^\W\d_])-.+", re.DOTALL)
_PARTS = (
    ("word", "words", "token", "tokens", "form"),
    ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "pos_tags", "upos", "xpos"),
)
_KNOWN = {name for part in _PARTS for name in part} | {"id", "index", "lemma", "chunk", "chunk_tag", "chunk_tags"}


def read_columns(source: Path | File) -> Iterator[Tagged]:
    """Read tagged sentences; a language before the tokens is removed if every token of the first sentence has it."""
    file = as_file(source)
    prefix: str | None = None
    for first, words, tags in _sentences(file):
        if prefix is None:
            # Of the whole first sentence, because a single word may begin like this by chance: `re:invent`.
            prefixes = {match[1] if (match := _LANGUAGE.fullmatch(word)) else "" for word in words}
            prefix = prefixes.pop() if len(prefixes) == 1 else ""
        for number, word in enumerate(words if prefix else (), start=first):
            if not word.startswith(prefix) or word == prefix:
                what = f"{word[:40]!r} does not begin with {prefix!r} and a word, as the first sentence does."
                raise DataError(file.path, number, what)
        yield Tagged(tuple(word.removeprefix(prefix) for word in words), tuple(tags))


def column_header(file: File) -> str | None:
    """Return the first line of a file if it is a header with the names of columns; else ``None``."""
    for number, line in _word_lines(file):
        if line:
            return line if _layout(line, file, number).has_header else None
    return None


def _sentences(file: File) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield the words and tags of each sentence, with the number of the first word's line."""
    universal = _is_universal(file)
    layout: Layout | None = None
    separator = ""
    first = size = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in _word_lines(file):
        if not line:
            if words:
                yield first, words, tags
            words, tags, size = [], [], 0
            continue

        # The first line with a word decides about all lines, or is a header.
        if layout is None:
            separator, layout = _separator(line), _layout(line, file, number)
            if layout.has_header:
                continue
        cells = _cells(line, separator)
        if len(cells) != layout.width:
            raise DataError(file.path, number, f"{len(cells)} columns, but {layout.width} in the first line.")
        word, tag = (cells[place] for place in layout.places)
        if universal:
            if cells[0] != str(len(words) + 1):
                raise DataError(file.path, number, f"id {cells[0][:20]!r} instead of {len(words) + 1}.")
            tag = "O" if tag == "-" else tag
        if wrong := _wrong_tag(tag) if word.strip() else "no token in this line.":
            raise DataError(file.path, number, wrong)

        # A file without blank lines would otherwise be read into memory as a single sentence.
        size += len(word) + len(tag)
        if size > LIMITS.line_bytes:
            raise DataError(file.path, number, f"a sentence of more than {LIMITS.line_bytes} characters.")
        if not words:
            first = number
        words.append(word)
        tags.append(tag)
    if words:
        yield first, words, tags


def _word_lines(file: File) -> Iterator[tuple[int, str]]:
    """Yield the lines of words with their numbers, and an empty line for each that ends a sentence."""
    comments = file.ending == ".iob2"
    for number, line in read_lines(file.path):
        is_end = not line.strip() or line.startswith("-DOCSTART-") or (comments and line.startswith("#"))
        yield number, "" if is_end else line


def _is_universal(file: File) -> bool:
    return file.ending == ".iob2" and not file.columns


def _separator(line: str) -> str:
    return "\t" if "\t" in line else " "


def _cells(line: str, separator: str) -> list[str]:
    return line.rstrip(" ").split(separator)


def _layout(line: str, file: File, number: int) -> Layout:
    """Find the columns of words and tags by the first line of a file."""
    separator = _separator(line)
    cells = _cells(line, separator)
    tabs, width = separator == "\t", len(cells)
    if _is_universal(file):
        if not tabs or width < 3:
            raise DataError(file.path, number, "an .iob2 file has id, token and tag, separated by tabs.")
        return Layout((1, 2), ("", ""), width, has_header=False)
    names = {cell.casefold() for cell in cells}
    if file.columns or (names <= _KNOWN and all(names & set(part) for part in _PARTS)):
        layout = find_layout(cells, _PARTS, file.columns, Location(file.path, number))
        assert layout is not None
        return layout
    # The columns of CoNLL 2003 are a word, a part of speech, a chunk and an entity.
    is_conll_2003 = width == 4 and all(cell == "O" or cell[:2] in ("B-", "I-") for cell in cells[2:])
    if tabs and width != 2 and not is_conll_2003:
        what = f"{width} columns separated by tabs, but token and tag are 2."
        hint = f"Name the columns after #, with _ for those to leave out, such as {file.path}#word,_,tag."
        raise DataError(file.path, number, f"{what} {hint} Universal NER files are named .iob2; pairs are not tags.")
    if width == 1:
        raise DataError(file.path, number, "one column only. Token and tag are separated by a tab or a space.")
    return Layout((0, width - 1), ("", ""), width, has_header=False)


@lru_cache(maxsize=1024)  # a corpus has few tags, and each stands in many lines
def _wrong_tag(tag: str) -> str:
    """Describe what is wrong with a tag; empty if nothing is."""
    if not tag or tag != tag.strip():
        return f"{tag[:40]!r} is no tag."
    if (match := _PREFIXED.fullmatch(tag)) and match[1] not in "BIES":
        return f"the tag {tag[:40]!r} begins with {match[1]}-. Entities are tagged B-, I-, E-, S- or O."
    return ""
