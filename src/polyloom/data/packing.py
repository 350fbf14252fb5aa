"""Pack encoded examples into arrays, row after row, so that NumPy moves thousands of them at once."""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyloom.data.blocks import Columns, Integers, Words
from polyloom.errors import DataError

EncodedExample = Mapping[str, Sequence[int] | int]

ROWS_PER_PACK = 10_000


class Packed(NamedTuple):
    """Rows as 32-bit integers, called words here."""

    words: Words
    """Row after row: the length of each list, the numbers, the lists."""
    sizes: Words
    """Number of words of each row."""
    lengths: Words
    """The column ``length``."""

    def starts(self) -> Integers:
        """Return where each row starts."""
        starts: Integers = np.cumsum(self.sizes, dtype=np.int64) - self.sizes
        return starts


def pack(rows: Iterable[EncodedExample], columns: Columns, *, name: object) -> Iterator[Packed]:
    """Pack rows as they come, some thousands at a time.

    Args:
        rows: The rows, each with exactly the given columns.
        columns: Name and kind of each column; ``length``, an ``int`` above 0, must be among them.
        name: Name of the dataset, for errors.
    """
    if columns.get("length") != "int":
        raise DataError(name, None, "a dataset needs a column `length` of kind int.")
    iterator, first = iter(rows), 0
    while chunk := list(itertools.islice(iterator, ROWS_PER_PACK)):
        for number, row in enumerate(chunk, first):
            if row.keys() != columns.keys():
                message = f"row {number} has the columns {', '.join(row)}. Known: {', '.join(columns)}."
                raise DataError(name, None, message)
        # Thousands of rows are converted at once. Only if that fails, the column that is wrong is searched for.
        try:
            packed = _pack_chunk(chunk, columns)
        except (TypeError, OverflowError):
            where = f"rows {first} to {first + len(chunk) - 1}"
            raise DataError(name, None, f"{where}, {_mistake(chunk, columns)}.") from None
        if packed.lengths.min() < 1:
            message = f"row {first + int(packed.lengths.argmin())}: its length is {packed.lengths.min()}."
            raise DataError(name, None, message)
        yield packed
        first += len(chunk)


def _pack_chunk(rows: Sequence[Any], columns: Columns) -> Packed:
    # The head of a row: how long each list is, then the numbers.
    lists = [column for column, kind in columns.items() if kind == "ints"]
    numbers = [column for column, kind in columns.items() if kind == "int"]
    heads = [array("i", [len(row[column]) for row in rows]) for column in lists]
    heads += [array("i", [row[column] for row in rows]) for column in numbers]
    head_NC = np.stack([np.frombuffer(head, np.int32) for head in heads], axis=1)

    # Heads are written where rows start. Then the lists, column by column, each behind that of the column before.
    sizes = len(heads) + head_NC[:, : len(lists)].sum(1, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    words = np.empty(int(sizes.sum()), np.int32)
    words[starts[:, None] + np.arange(len(heads))] = head_NC
    begin = starts + len(heads)
    for column, count_N in zip(lists, head_NC.T.astype(np.int64), strict=False):
        values = array("i", itertools.chain.from_iterable(row[column] for row in rows))
        words[_places(begin, count_N)] = np.frombuffer(values, np.int32)
        begin += count_N
    lengths = head_NC[:, len(lists) + numbers.index("length")].copy()
    return Packed(words, sizes.astype(np.int32), lengths)


def _mistake(rows: Sequence[Any], columns: Columns) -> str:
    """Say which column has something else than 32-bit integers. NumPy would take 1.5 for 1, arrays of Python do not."""
    for column, kind in columns.items():
        values = [row[column] for row in rows]
        try:
            array("i", itertools.chain.from_iterable(values) if kind == "ints" else values)
        except (TypeError, OverflowError) as error:
            return f"column {column}: {error}"
    raise AssertionError


def unpack(packed: Packed, columns: Columns, starts: Integers) -> Words:
    """Lay out the rows that start at some places as the content of a block: column after column, see `data.blocks`."""
    lists = [column for column, kind in columns.items() if kind == "ints"]
    numbers = [column for column, kind in columns.items() if kind == "int"]
    # A row begins with a head: the lengths of its lists, then its numbers. Its lists follow in the order of columns.
    begin, parts = starts + len(lists) + len(numbers), {}
    for number, column in enumerate(lists):
        counts = packed.words[starts + number].astype(np.int64)
        parts[column] = [np.cumsum(np.append(0, counts)).astype(np.int32), gather(packed.words, begin, counts)]
        begin += counts
    for number, column in enumerate(numbers, start=len(lists)):
        parts[column] = [packed.words[starts + number]]
    return np.concatenate([part for column in columns for part in parts[column]])


def gather(words: Words, starts: Integers, sizes: Integers) -> Words:
    """Return the ranges of an array that begin at some places and have some sizes, one after another."""
    return words[_places(starts, sizes)]


def _places(starts: Integers, sizes: Integers) -> Integers:
    """Return the indices of all words of ranges, which begin at some places and have some sizes."""
    # Counting on from 0, a range begins where the sizes before it end: it has to be moved from there to its start.
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    places: Integers = np.repeat(starts - (ends - sizes), sizes) + np.arange(total)
    return places


def select(packed: Packed, order: Integers) -> Packed:
    """Return rows in an order."""
    words = gather(packed.words, packed.starts()[order], packed.sizes[order].astype(np.int64))
    return Packed(words, packed.sizes[order], packed.lengths[order])


def concatenated(packs: Sequence[Packed]) -> Packed:
    """Return the rows of several packs."""
    return Packed(*(np.concatenate(arrays) for arrays in zip(*packs, strict=True)))
