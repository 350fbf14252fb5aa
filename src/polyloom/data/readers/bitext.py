"""Sentences and their translations: where the two sides lie, in which order they come, and which pairs to leave out.

Two files whose lines belong together, tables with tabs, JSON lines and translation memories. Pairs with an empty side
are left out everywhere.
"""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from polyloom.data.readers.tmx import read_tmx
from polyloom.data.records import Bitext, Kind, Record
from polyloom.errors import DataError
from polyloom.io.files import checked_text, ending_of, read_json_lines, read_lines, sha256_of
from polyloom.ranges import Count

Direction = tuple[str, str]
Rule = Literal["empty", "length", "ratio", "duplicate"]

SPLITS = ("train", "dev", "test")
_RANGE = "<range>"  # eBible: printed with the line before it
_SKIPPED = "_"
_BRACES = re.compile(r"(.*)\{([^{},]+),([^{},]+)\}(.*)", re.DOTALL)
_LINE_END = re.compile(r"[ \t]*[\r\n]+[ \t]*")


@dataclass(frozen=True)
class Table:
    """Two columns of a table with tabs.

    Attributes:
        path: The file.
        columns: The two sides, counted from 0.
        width: How many columns there are.
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
        return sha256_of(self.path)

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
    """Two files, line i of one the translation of line i of the other.

    Attributes:
        paths: The two sides.
        splits: A file whose line i says which split these lines belong to; without one, all are taken.
        split: The split that is taken.
    """

    paths: tuple[Path, Path]
    splits: Path | None = None
    split: str | None = None

    def records(self, kind: Kind) -> Iterator[Bitext]:
        """Read the pairs; files of different length are an error, never cut to the shorter."""
        _check_kind(kind, self.paths[0])
        return _pairs(self._rows())

    def sha256(self) -> str:
        """Hash of the hashes of all files."""
        return hashlib.sha256("".join(sha256_of(path) for path in self._files).encode()).hexdigest()

    @property
    def _files(self) -> tuple[Path, ...]:
        return (*self.paths, self.splits) if self.splits else self.paths

    def _rows(self) -> Iterator[tuple[str, str]]:
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


def split_file(path: Path) -> Path:
    """The file beside another that says which split each line belongs to."""
    found = [one for ending in ("", ".gz", ".xz") if (one := path.with_name(f"split.txt{ending}")).is_file()]
    if len(found) != 1:
        raise DataError(
            path.parent, None, f"{len(found)} files split.txt, but 1 must say which lines are for training."
        )
    return found[0]


def bitext_of(name: str) -> tuple[Table | Aligned, Direction] | None:
    """What ``train.{en,de}`` or ``pairs.tsv#en,_,de`` means, with the languages of its sides; ``None`` if neither.

    After ``#`` stand the languages of a table's columns, or of the two files where the braces do not say them.
    """
    bare, sign, after = name.rpartition("#")
    bare = bare if sign else name
    if match := _BRACES.fullmatch(bare):
        first, second = (Path(f"{match[1]}{word}{match[4]}") for word in (match[2], match[3]))
        if missing := [str(path) for path in (first, second) if not path.is_file()]:
            raise DataError(name, None, f"no such file: {' and '.join(missing)}.")
        return Aligned((first, second)), renamed(after, name) if sign else _two((match[2], match[3]), name)
    if not (sign and Path(bare).is_file()):
        return None
    if ending_of(Path(bare)) != ".tsv":
        raise DataError(name, None, f"only the columns of a table (.tsv) are named. Write {bare}.")
    columns = _columns(after, name)
    sides = [place for place, language in enumerate(columns) if language != _SKIPPED]
    languages = _two([columns[place] for place in sides], name)
    return Table(Path(bare), (sides[0], sides[1]), len(columns)), languages


def renamed(after: str, name: str) -> Direction:
    """The two languages of ``en,de`` after a ``#``."""
    return _two(_columns(after, name), name)


def _two(languages: Sequence[str], name: str) -> Direction:
    if len(languages) != 2 or languages[0] == languages[1] or _SKIPPED in languages:
        raise DataError(name, None, f"two languages are needed, not {', '.join(languages) or 'none'}.")
    return languages[0], languages[1]


def _columns(after: str, name: str) -> list[str]:
    columns = after.split(",")
    if not all(columns) or any(column != column.strip() for column in columns):
        raise DataError(name, None, "expected languages after #, such as #en,de, with _ for a column to leave out.")
    return columns


def is_turned(languages: Direction, direction: Direction, name: str) -> bool:
    """Whether a corpus must be turned round to go in a direction."""
    if direction in (languages, languages[::-1]):
        return direction != languages
    what = f"from {direction[0]} to {direction[1]} is asked for, but its languages are {' and '.join(languages)}."
    hint = f"If they are the same by other names: #{direction[0]},{direction[1]} (or the other way round) at its end."
    raise DataError(name, None, f"{what} {hint}")


def mirrored(records: Iterable[Record]) -> Iterator[Bitext]:
    """Source for target and target for source."""
    for record in records:
        assert isinstance(record, Bitext)
        yield Bitext(record.target, record.source)


def read_bitext(path: Path, direction: Direction | None = None) -> Iterator[Bitext]:
    """Read a table, JSON lines or a translation memory.

    Args:
        path: The file.
        direction: Source and target language, for files that say which is which. A table's first column is the source.
    """
    ending = ending_of(path)
    if ending == ".tsv":
        return Table(path).records("bitext")
    if direction and direction[0] == direction[1]:
        raise DataError(path, None, f"two languages are needed, not {direction[0]} twice.")
    return _pairs(read_tmx(path, direction) if ending == ".tmx" else _json_rows(path, direction))


def _json_rows(path: Path, direction: Direction | None) -> Iterator[tuple[str, str]]:
    """The two languages of every object, or of its ``translation``; else its ``source`` and ``target``."""
    for number, row in read_json_lines(path):
        texts = row.get("translation", row)
        if not isinstance(texts, dict):
            raise DataError(path, number, "'translation' is not an object with a text for each language.")
        keys = _keys(texts, direction, path, number)
        if direction is None and keys != ("source", "target"):
            direction = keys  # in the order of the first line, whatever the order in later ones
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
        source, target = (_LINE_END.sub(" ", text.strip()) for text in row)
        if source and target:
            yield Bitext(source, target)


def _check_kind(kind: Kind, path: Path) -> None:
    if kind != "bitext":
        raise DataError(path, None, f"named as bitext, it has no records of kind {kind!r}. Known: bitext.")


@dataclass(frozen=True)
class Filter:
    """Which pairs to learn from.

    Attributes:
        max_length: Most pieces of a side.
        max_ratio: How many times longer than the other a side may be.
        deduplicate: Whether a pair that came before is left out.
    """

    max_length: Count = 250
    max_ratio: Annotated[float, Ge(1)] = 2.5
    deduplicate: bool = True

    def keeps(self, source: int, target: int) -> bool:
        """Whether a pair of so many pieces is kept."""
        return self.broken_rule(source, target) is None

    def broken_rule(self, source: int, target: int) -> Rule | None:
        """The first rule that a pair of so many pieces breaks."""
        short, long = sorted((source, target))
        if short < 1:
            return "empty"
        if long > self.max_length:
            return "length"
        return "ratio" if long > self.max_ratio * short else None


class DedupSet:
    """Pairs that came before, as hashes of 64 bits: 12 to 24 bytes of memory per pair, however long it is.

    Among a hundred million pairs, the chance that any is taken for another is one in 3,700.
    """

    def __init__(self) -> None:
        # One after another, small tables grow in little more than the room they end up with.
        self._tables = [_Hashes() for _ in range(256)]

    def add(self, pair: Bitext) -> bool:
        """Note a pair, and say whether it is new."""
        text = f"{len(pair.source)} {pair.source}{pair.target}".encode()  # the length tells "a", "bc" from "ab", "c"
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        return self._tables[number >> 56].add(number)


class _Hashes:
    """A set of numbers of 64 bits by open addressing, at most two thirds full; Python's takes 100 bytes for each."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 64))  # 0: free
        self._count = 0

    def add(self, number: int) -> bool:
        """Add a number, and say whether it is new."""
        number = number or 1
        place = self._place(number)
        if self._slots[place]:
            return False
        self._slots[place] = number
        self._count += 1
        if 3 * self._count > 2 * len(self._slots):
            old, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
            for one in filter(None, old):
                self._slots[self._place(one)] = one
        return True

    def _place(self, number: int) -> int:
        """Where a number is, or would be."""
        slots, mask = self._slots, len(self._slots) - 1
        place = number & mask
        while slots[place] and slots[place] != number:
            place = (place + 1) & mask
        return place


class PairFilter:
    """A filter at work.

    Attributes:
        rules: The filter.
        dropped: How many pairs were left out, by rule.
    """

    def __init__(self, rules: Filter) -> None:
        self.rules = rules
        self.dropped: Counter[Rule] = Counter()
        self._seen = DedupSet()

    def keeps(self, pair: Bitext, source: int, target: int) -> bool:
        """Whether a pair, of so many pieces, is kept."""
        rule = self.rules.broken_rule(source, target)
        if rule is None and self.rules.deduplicate and not self._seen.add(pair):
            rule = "duplicate"
        if rule:
            self.dropped[rule] += 1
        return rule is None
