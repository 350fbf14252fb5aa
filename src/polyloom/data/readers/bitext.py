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
from typing import Annotated, Any, Literal

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
    """Two columns of a TSV file.

    Attributes:
        path: The file.
        columns: The columns of source and target, counted from 0.
        width: Number of columns.
    """

    path: Path
    columns: tuple[int, int] = (0, 1)
    width: int = 2

    def records(self, kind: Kind) -> Iterator[Bitext]:
        """Read the pairs."""
        _check_kind(kind, self.path)
        return _pairs(self._rows())

    def sha256(self) -> str:
        """Hash of the file."""
        return remembered_sha256(self.path)

    def _rows(self) -> Iterator[tuple[str, str]]:
        first, second = self.columns
        for number, line in read_lines(self.path):
            if not line.strip():
                continue
            fields = line.split("\t")
            if len(fields) != self.width:
                hint = "Name the columns after #, with _ for those to leave out, such as #en,de,_."
                raise DataError(self.path, number, f"{len(fields)} columns instead of {self.width}. {hint}")
            yield fields[first], fields[second]


@dataclass(frozen=True)
class Aligned:
    """Two files; line i of one is the translation of line i of the other.

    Attributes:
        paths: The files of source and target.
        splits: A file whose line i names the split of line i. By default all lines are read.
        split: The split to read.
    """

    paths: tuple[Path, Path]
    splits: Path | None = None
    split: str | None = None

    def records(self, kind: Kind) -> Iterator[Bitext]:
        """Read the pairs; files of different length are an error."""
        _check_kind(kind, self.paths[0])
        return _pairs(self.rows())

    def sha256(self) -> str:
        """Hash of the hashes of all files."""
        return hashlib.sha256("".join(map(remembered_sha256, self._files)).encode()).hexdigest()

    @property
    def _files(self) -> tuple[Path, ...]:
        return (*self.paths, self.splits) if self.splits else self.paths

    def rows(self) -> Iterator[tuple[str, str]]:
        """Read the lines of the split; files of different length are an error."""
        streams = [read_lines(path) for path in self._files]
        for number, lines in enumerate(zip_longest(*streams), start=1):
            if None in lines:
                raise self._uneven([number - (line is None) for line in lines], streams)
            source, target, *splits = (line for _, line in lines)
            if self.splits and splits[0] not in SPLITS:
                raise DataError(self.splits, number, f"{splits[0][:40]!r} is no split. Known: {', '.join(SPLITS)}.")
            if splits in ([], [self.split]) and _RANGE not in (source.strip(), target.strip()):
                yield source, target

    def _uneven(self, counts: list[int], streams: list[Iterator[tuple[int, str]]]) -> DataError:
        counts = [count + sum(1 for _ in stream) for count, stream in zip(counts, streams, strict=True)]
        has = " and ".join(f"{path} has {n:,} lines" for path, n in zip(self._files, counts, strict=True))
        shortest = self._files[counts.index(min(counts))]
        return DataError(shortest, max(1, min(counts)), f"the files are not aligned: {has}.")


@dataclass(frozen=True)
class OneSide:
    """The file of one language among files whose lines are translations of one another, read as raw text.

    Attributes:
        path: The file.
        splits: A file whose line i names the split of line i.
        split: The split to read.
    """

    path: Path
    splits: Path
    split: str

    def records(self, kind: Kind) -> Iterator[Text]:
        """Read the lines of the split that have text."""
        if kind != "text":
            raise DataError(self.path, None, f"one language is raw text, not {kind}. Name two for translations.")
        both = Aligned((self.path, self.path), self.splits, self.split)
        return (Text(text) for line, _ in both.rows() if (text := line.strip()))

    def sha256(self) -> str:
        """Hash of the hashes of both files."""
        return hashlib.sha256("".join(map(remembered_sha256, (self.path, self.splits))).encode()).hexdigest()


def split_file(path: Path) -> Path:
    """Find the file in the same folder that names the split of each line."""
    files = [file for ending in ("", ".gz", ".xz") if (file := path.with_name(f"split.txt{ending}")).is_file()]
    if len(files) != 1:
        raise DataError(
            path.parent, None, f"{len(files)} files split.txt, but 1 must say which lines are for training."
        )
    return files[0]


def table_of(file: File, name: str) -> tuple[Table, Direction] | None:
    """Find the two sides of ``pairs.tsv#en,_,de`` and their languages; ``None`` if its columns are not languages."""
    sides = [place for place, column in enumerate(file.columns) if column != SKIPPED]
    languages = [file.columns[place] for place in sides]
    if not sides or not all(_LANGUAGE.fullmatch(code) for code in languages):
        return None
    if file.ending != ".tsv":
        raise DataError(name, None, f"only the columns of a table (.tsv) are languages. Write {file.path}.")
    direction = _two(languages, name)
    return Table(file.path, (sides[0], sides[1]), len(file.columns)), direction


def aligned_of(name: str, root: Path) -> tuple[Aligned, Direction] | None:
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
    return Aligned((first, second)), renamed(after, name) if sign else _two((match[2], match[3]), name)


def renamed(after: str, name: str) -> Direction:
    """Parse the two languages of ``en,de`` after a ``#``."""
    return _two(_columns(after, name), name)


def _two(languages: Sequence[str], name: str) -> Direction:
    if len(languages) != 2 or languages[0] == languages[1] or SKIPPED in languages:
        raise DataError(name, None, f"two languages are needed, not {', '.join(languages) or 'none'}.")
    return languages[0], languages[1]


def _columns(after: str, name: str) -> list[str]:
    columns = after.split(",")
    if not all(columns) or any(column != column.strip() for column in columns):
        raise DataError(name, None, "expected languages after #, such as #en,de, with _ for a column to leave out.")
    return columns


def is_turned(languages: Direction, direction: Direction, name: str) -> bool:
    """Return whether source and target of a corpus must be swapped for a direction."""
    if direction in (languages, languages[::-1]):
        return direction != languages
    what = f"from {direction[0]} to {direction[1]} is asked for, but its languages are {' and '.join(languages)}."
    hint = f"If they are the same by other names: #{direction[0]},{direction[1]} (or the other way round) at its end."
    raise DataError(name, None, f"{what} {hint}")


def mirrored(records: Iterable[Record]) -> Iterator[Bitext]:
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
    for number, row in read_json_lines(path):
        texts = row.get("translation", row)
        if isinstance(texts, str) and "text" in row:
            texts = {"source": row["text"], "target": texts}
        if not isinstance(texts, dict):
            raise DataError(path, number, "'translation' is not an object with a text for each language.")
        keys = _keys(texts, direction, path, number)
        if direction is None and keys != ("source", "target"):
            direction = keys  # in the order of the first line, whatever the order in later lines
        source, target = (_json_text(texts[key], path, number, key=key) for key in keys)
        yield source, target


def _keys(texts: dict[str, Any], direction: Direction | None, path: Path, number: int) -> Direction:
    if direction and all(language in texts for language in direction):
        return direction
    if "source" in texts and "target" in texts:
        return "source", "target"
    there = ", ".join(repr(key[:40]) for key in list(texts)[:12]) or "none"
    if direction:
        missing = next(language for language in direction if language not in texts)
        raise DataError(path, number, f"no {missing!r} here, nor 'source' and 'target'. Known: {there}.")
    if len(texts) != 2:
        raise DataError(path, number, f"{len(texts)} languages. Say which two are meant. Known: {there}.")
    first, second = texts
    return first, second


def _json_text(value: Any, path: Path, number: int, *, key: str) -> str:
    return "" if value is None else checked_text(value, path, number, name=key[:40])


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[Bitext]:
    for row in rows:
        source, target = map(_one_line, row)
        if source and target:
            yield Bitext(source, target)


def _one_line(text: str) -> str:
    text = text.strip()
    return _LINE_END.sub(" ", text) if "\n" in text or "\r" in text else text


def _check_kind(kind: Kind, path: Path) -> None:
    if kind != "bitext":
        raise DataError(path, None, f"named as bitext, it has no records of kind {kind!r}. Known: bitext.")


@dataclass(frozen=True)
class Filter:
    """Rules for the pairs to train on.

    Attributes:
        max_length: Maximum number of tokens of a side, 250 by default.
        max_ratio: Maximum ratio of the lengths of the two sides, 2.5 by default.
        deduplicate: Whether repeated pairs are left out; true by default.
    """

    max_length: Count = 250
    max_ratio: Annotated[float, Ge(1)] = 2.5
    deduplicate: bool = True

    def keeps(self, source: int, target: int) -> bool:
        """Return whether a pair with these numbers of tokens is kept."""
        return self.broken_rule(source, target) is None

    def broken_rule(self, source: int, target: int) -> Rule | None:
        """Return the first rule that a pair with these numbers of tokens breaks, or ``None``."""
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
    """A filter at work.

    Attributes:
        rules: The filter.
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
