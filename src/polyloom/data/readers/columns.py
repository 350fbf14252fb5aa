"""Tagged words in columns, one word per line and a blank line between sentences: WikiANN, CoNLL, MasakhaNER, UNER.

The first line with a word decides what the whole file looks like; a line that disagrees is an error.

* ``token<TAB>tag`` (WikiANN as in XTREME), also with the language before every token (``yo:Pópù<TAB>B-PER``, mmner).
* ``token … tag`` separated by single spaces (MasakhaNER, CoNLL 2002 and 2003): first and last column.
* ``id<TAB>token<TAB>tag…`` with comments, in files named ``.iob2`` (Universal NER). There ``-`` is an empty column,
  thus no entity. Elsewhere a ``#`` is a word like any other.

Tags are kept as they are, also impossible sequences: how to read those is a matter of the metric.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from polyloom.data.records import Tagged
from polyloom.errors import DataError
from polyloom.io.files import LIMITS, ending_of, read_lines

_LANGUAGE = re.compile(r"([a-z]{2,3}(?:-[a-z]+)*:).+", re.DOTALL)
_PREFIXED = re.compile(r"([^\W\d_])-.+", re.DOTALL)


def read_columns(path: Path) -> Iterator[Tagged]:
    """Read tagged sentences; a language before the tokens is taken off if every token of the first sentence has it."""
    prefix: str | None = None
    for line, words, tags in _sentences(path):
        if prefix is None:
            prefix = _common_language(words)
        yield Tagged(tuple(_without(prefix, words, path, line) if prefix else words), tuple(tags))


def _common_language(words: list[str]) -> str:
    found = {match[1] if (match := _LANGUAGE.fullmatch(word)) else "" for word in words}
    return found.pop() if len(found) == 1 else ""


def _without(prefix: str, words: list[str], path: Path, line: int) -> list[str]:
    for index, word in enumerate(words):
        if not word.startswith(prefix) or word == prefix:
            what = f"{word[:40]!r} does not begin with {prefix!r} and a word, as the first sentence does."
            raise DataError(path, line + index, what)
    return [word.removeprefix(prefix) for word in words]


def _sentences(path: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """Words and tags of each sentence, with the number of the first word's line."""
    universal = ending_of(path) == ".iob2"
    separator = ""
    columns = first = size = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in read_lines(path):
        if not line.strip() or line.startswith("-DOCSTART-") or (universal and line.startswith("#")):
            if words:
                yield first, words, tags
                words, tags, size = [], [], 0
            continue
        if not separator:
            separator, columns = _layout(line, path, number, universal=universal)
        fields = line.rstrip(" ").split(separator)
        if len(fields) != columns:
            raise DataError(path, number, f"{len(fields)} columns, but {columns} in the first line.")
        word, tag = (fields[1], "O" if fields[2] == "-" else fields[2]) if universal else (fields[0], fields[-1])
        if universal and fields[0] != str(len(words) + 1):
            raise DataError(path, number, f"id {fields[0][:20]!r} instead of {len(words) + 1}.")
        if wrong := _wrong_tag(tag) if word.strip() else "no token in this line.":
            raise DataError(path, number, wrong)
        if (size := size + len(line)) > LIMITS.line_bytes:
            raise DataError(path, number, f"a sentence of more than {LIMITS.line_bytes} characters.")
        first = first if words else number
        words.append(word)
        tags.append(tag)
    if words:
        yield first, words, tags


def _layout(line: str, path: Path, number: int, *, universal: bool) -> tuple[str, int]:
    """What separates the columns of a file, and how many there are, by its first line."""
    tabs = "\t" in line
    columns = len(line.rstrip(" ").split("\t" if tabs else " "))
    if universal and (not tabs or columns < 3):
        raise DataError(path, number, "an .iob2 file has id, token and tag, separated by tabs.")
    if not universal and tabs and columns != 2:
        what = f"{columns} columns separated by tabs, but token and tag are 2."
        raise DataError(path, number, f"{what} Universal NER files are named .iob2; pairs are not tags.")
    if columns == 1:
        raise DataError(path, number, "one column only. Token and tag are separated by a tab or a space.")
    return ("\t" if tabs else " "), columns


@lru_cache(maxsize=1024)
def _wrong_tag(tag: str) -> str:
    """What is wrong with a tag, if anything."""
    if not tag or tag != tag.strip():
        return f"{tag[:40]!r} is no tag."
    if (match := _PREFIXED.fullmatch(tag)) and match[1] not in "BIES":
        return f"the tag {tag[:40]!r} begins with {match[1]}-. Entities are tagged B-, I-, E-, S- or O."
    return ""
