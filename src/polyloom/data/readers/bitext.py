"""Read sentences and their translations, and filter them.

Formats are two aligned files, TSV, JSON lines and translation memories (TMX). Pairs with an empty side are always left
out.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from polyloom.data.readers.tables import SKIPPED
from polyloom.data.readers.tmx import read_tmx
from polyloom.data.records import Bitext, Kind, Record, Text
from polyloom.errors import DataError
from polyloom.io.files import File, as_file, checked_text, read_json_lines, read_lines
from polyloom.io.hashes import remembered_sha256
from polyloom.ranges import Count

Direction = tuple[str, str]
Rule = Literal["empty", "length", "ratio", "duplicate"]

SPLITS = ("train", "dev", "test")
_RANGE = "<range>"  # eBible: printed with the line before it
_LANGUAGE = re.compile(r"(?!(?:tag|ner|pos)$)[a-z]{2,3}(?:_[A-Z][A-Za-z]+|-[A-Za-z0-9]+)*")
_BRACES = re.compile(r"(.*)\{([^{},]+),([^{},]+)\}(.*)", re.DOTALL)
_LINE_END = re.compile(r"[ \t]*[\r\n]+[ \t]*")


@dataclass(frozen=True)
class Table:
    """Two columns of a TSV file."""

    path: Path
    columns: tuple[int, int] = (0, 1)
    """The columns of source and target, counted from 0."""
    width: int = 2
    """Number of columns."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.path,)

    def records(self, kind: Kind) -> Iterator[Bitext]:
        """Read the pairs."""
        _require_kind(kind, "bitext", self.path)
        return _pairs(self._rows())

    def sha256(self) -> str:
        """Hash of the file."""
        return remembered_sha256(self.path)

    def _rows(self) -> Iterator[tuple[str, str]]:
        source, target = self.columns
        for number, line in read_lines(self.path):
            if not line.strip():
                continue
            cells = line.split("\t")
            if len(cells) != self.width:
                hint = "Name the columns after #, with _ for those to leave out, such as #en,de,_."
                raise DataError(self.path, number, f"{len(cells)} columns instead of {self.width}. {hint}")
            yield cells[source], cells[target]


@dataclass(frozen=True)
class Aligned:
    """Files whose lines with the same number are translations of one another; or one such file, as raw text."""

    files: tuple[Path, ...]
    """The files of source and target, or one file."""
    splits: Path | None = None
    """A file whose line i names the split of line i. By default all lines are read."""
    split: str | None = None
    """The split to read."""

    def records(self, kind: Kind) -> Iterator[Bitext | Text]:
        """Read the pairs, or the lines of one language that have text; files of different length are an error."""
        if len(self.files) == 1:
            if kind != "text":
                what = f"one language is raw text, not {kind}. Name two for translations."
                raise DataError(self.files[0], None, what)
            return (Text(text) for (line,) in self._rows() if (text := line.strip()))
        _require_kind(kind, "bitext", self.files[0])
        return _pairs((source, target) for source, target in self._rows())

    def sha256(self) -> str:
        """Hash of the hashes of all files."""
        return hashlib.sha256("".join(map(remembered_sha256, self._all_files)).encode()).hexdigest()

    @property
    def _all_files(self) -> tuple[Path, ...]:
        return (*self.files, self.splits) if self.splits else self.files

    def _rows(self) -> Iterator[list[str]]:
        """Yield the lines of the split, one of each file."""
        readers = [read_lines(path) for path in self._all_files]
        for number, lines in enumerate(zip_longest(*readers), start=1):
            # A file has ended before another: read the others to their ends, to say how long each of them is.
            if None in lines:
                counts = [
                    number - (line is None) + sum(1 for _ in reader)
                    for line, reader in zip(lines, readers, strict=True)
                ]
                lengths = [f"{path} has {count:,} lines" for path, count in zip(self._all_files, counts, strict=True)]
                shortest = self._all_files[counts.index(min(counts))]
                what = f"the files are not aligned: {' and '.join(lengths)}."
                raise DataError(shortest, max(1, min(counts)), what)
            texts = [line for _, line in lines]
            if self.splits:
                split = texts.pop()
                if split not in SPLITS:
                    raise DataError(self.splits, number, f"{split[:40]!r} is no split. Known: {', '.join(SPLITS)}.")
                if split != self.split:
                    continue
            if _RANGE not in map(str.strip, texts):
                yield texts


def split_file(path: Path) -> Path:
    """Find the file in the same folder that names the split of each line."""
    files = [file for ending in ("", ".gz", ".xz") if (file := path.with_name(f"split.txt{ending}")).is_file()]
    if len(files) != 1:
        raise DataError(
            path.parent, None, f"{len(files)} files split.txt, but 1 must say which lines are for training."
        )
    return files[0]


def parse_table(file: File, name: str) -> tuple[Table, Direction] | None:
    """Find the two sides of ``pairs.tsv#en,_,de`` and their languages; ``None`` if its columns are not languages."""
    sides = [place for place, column in enumerate(file.columns) if column != SKIPPED]
    languages = [file.columns[place] for place in sides]
    if not sides or not all(_LANGUAGE.fullmatch(code) for code in languages):
        return None
    if file.ending != ".tsv":
        raise DataError(name, None, f"only the columns of a table (.tsv) are languages. Write {file.path}.")
    direction = _two(languages, name)
    return Table(file.path, (sides[0], sides[1]), len(file.columns)), direction


def parse_aligned(name: str, root: Path) -> tuple[Aligned, Direction] | None:
    """Find the files of ``train.{en,de}``, here or below the root, and their languages; ``None`` without braces.

    After ``#`` stand the languages of the two files where the braces do not name them.
    """
    bare, sign, after = name.partition("#")
    match = _BRACES.fullmatch(bare)
    if match is None:
        return None
    first, second = (Path(f"{match[1]}{word}{match[4]}") for word in (match[2], match[3]))
    if (root / first).is_file() and (root / second).is_file() and not first.is_file():
        first, second = root / first, root / second
    if missing := [str(path) for path in (first, second) if not path.is_file()]:
        raise DataError(name, None, f"no such file: {' and '.join(missing)}.")
    return Aligned((first, second)), parse_languages(after, name) if sign else _two((match[2], match[3]), name)


def parse_languages(after: str, name: str) -> Direction:
    """Parse the two languages of ``en,de`` after a ``#``."""
    languages = after.split(",")
    if not all(languages) or any(language != language.strip() for language in languages):
        raise DataError(name, None, "expected languages after #, such as #en,de, with _ for a column to leave out.")
    return _two(languages, name)


def _two(languages: Sequence[str], name: str) -> Direction:
    if len(languages) != 2 or languages[0] == languages[1] or SKIPPED in languages:
        raise DataError(name, None, f"two languages are needed, not {', '.join(languages) or 'none'}.")
    return languages[0], languages[1]


def is_reversed(languages: Direction, direction: Direction, name: str) -> bool:
    """Return whether source and target of a corpus must be swapped for a direction."""
    if direction in (languages, languages[::-1]):
        return direction != languages
    what = f"the condition is {direction[0]} to {direction[1]}, but its languages are {' and '.join(languages)}."
    hint = f"If they are the same by other names: #{direction[0]},{direction[1]} (or the other way round) at its end."
    raise DataError(name, None, f"{what} {hint}")


def reverse(records: Iterable[Record]) -> Iterator[Bitext]:
    """Swap source and target of each record."""
    for record in records:
        assert isinstance(record, Bitext)
        yield Bitext(record.target, record.source)


def read_bitext(source: Path | File, direction: Direction | None = None) -> Iterator[Bitext]:
    """Read a table, JSON lines or a translation memory.

    Args:
        source: The file.
        direction: Source and target language, for files that name the languages. In TSV the first column is the source.
    """
    file = as_file(source)
    if file.ending == ".tsv":
        return Table(file.path).records("bitext")
    if direction and direction[0] == direction[1]:
        raise DataError(file.path, None, f"two languages are needed, not {direction[0]} twice.")
    return _pairs(read_tmx(file.path, direction) if file.ending == ".tmx" else _json_rows(file.path, direction))


def _json_rows(path: Path, direction: Direction | None) -> Iterator[tuple[str, str]]:
    """Yield the two languages of every object, or of its ``translation``.

    Without them, ``source`` and ``target`` are taken, or the ``text`` and ``translation`` of ``polyloom predict``.
    """
    keys: Direction
    for at, row in read_json_lines(path):
        texts = row.get("translation", row)
        if isinstance(texts, str) and "text" in row:  # as `polyloom predict` writes it
            texts = {"source": row["text"], "target": texts}
        if not isinstance(texts, dict):
            raise at.error("'translation' is not an object with a text for each language.")
        if direction and all(language in texts for language in direction):
            keys = direction
        elif "source" in texts and "target" in texts:
            keys = "source", "target"
        else:
            known = ", ".join(repr(key[:40]) for key in list(texts)[:12]) or "none"
            if direction:
                missing = direction[0] if direction[0] not in texts else direction[1]
                raise at.error(f"no {missing!r} here, nor 'source' and 'target'. Known: {known}.")
            if len(texts) != 2:
                raise at.error(f"{len(texts)} languages. Say which two are meant. Known: {known}.")
            # The order of the first line decides for all lines: in JSON the order of keys may differ from line to line.
            first, second = texts
            keys = direction = first, second
        source, target = ("" if texts[key] is None else checked_text(texts[key], at, name=key[:40]) for key in keys)
        yield source, target


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[Bitext]:
    """Make records of the rows in which both sides have text."""
    # JSON and TMX may have line ends within a text. A side is one line: line ends would shift what is written line by
    # line. The pattern is used only where there are any, because it is slow on long rows of spaces.
    for texts in rows:
        source, target = (
            _LINE_END.sub(" ", text.strip()) if "\n" in text or "\r" in text else text.strip() for text in texts
        )
        if source and target:
            yield Bitext(source, target)


def _require_kind(kind: Kind, expected: Kind, path: Path) -> None:
    if kind != expected:
        what = f"named as {expected}, it has no records of kind {kind!r}. Known: {expected}."
        raise DataError(path, None, what)


@dataclass(frozen=True)
class Filter:
    """Rules for the pairs to train on."""

    max_length: Count = 250
    """Maximum number of tokens of a side."""
    max_ratio: Annotated[float, Ge(1)] = 2.5
    """Maximum ratio of the numbers of tokens of the two sides. Raise it if one language takes many more tokens."""
    deduplicate: bool = True
    """Whether repeated pairs are left out."""

    def broken_rule(self, source: int, target: int) -> Rule | None:
        """Return the first rule that a pair with these numbers of tokens breaks, or ``None``."""
        # The rules of clean-corpus-n.perl (Moses), but by the tokens of the model instead of words.
        short, long = sorted((source, target))
        if short < 1:
            return "empty"
        if long > self.max_length:
            return "length"
        return "ratio" if long > self.max_ratio * short else None


def pair_key(pair: Bitext) -> bytes:
    """Return 128 bits that are the same for equal pairs."""
    # With the length, "a", "bc" and "ab", "c" are different texts.
    text = f"{len(pair.source)} {pair.source}{pair.target}".encode()
    return hashlib.blake2b(text, digest_size=16).digest()


class PairFilter:
    """A filter that counts what it leaves out.

    Attributes:
        rules: The rules.
        dropped: How many pairs were left out, by rule.
    """

    def __init__(self, rules: Filter) -> None:
        self.rules = rules
        self.dropped: Counter[Rule] = Counter()

    def keeps(self, source: int, target: int) -> bool:
        """Return whether a pair with these numbers of tokens is kept."""
        rule = self.rules.broken_rule(source, target)
        if rule:
            self.dropped[rule] += 1
        return rule is None
