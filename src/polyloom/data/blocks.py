"""Blocks: the unit in which encoded examples are stored on disk and in object storage, of about 128 KB.

A block is a sequence of 32-bit integers. Column after column it holds one number per row, or where each row's list
begins and the lists of all rows. Blocks of a dataset have the same number of rows, apart from the last one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ColumnKind = Literal["ints", "int"]
Columns = Mapping[str, ColumnKind]
Words = NDArray[np.int32]
Integers = NDArray[np.int64]
Row = dict[str, Words | int]

BLOCK_BYTES = 128 * 1024
LENGTH_BOUNDS = [8]  # of the buckets of lengths, each an eighth longer than the one before, in multiples of eight
while LENGTH_BOUNDS[-1] < 2**31:
    LENGTH_BOUNDS.append(-(-LENGTH_BOUNDS[-1] * 9 // 64) * 8)
# An entry of the index: where the block begins in its part, its size in bytes, its CRC-32.
INDEX_TYPE = np.dtype([("start", "<i8"), ("size", "<i8"), ("crc", "<u8")])


@dataclass(frozen=True)
class Block:
    """The rows of a block."""

    numbers: Mapping[str, Words]
    """Columns with one number per row."""
    lists: Mapping[str, tuple[Words, Words]]
    """Columns with one list per row: where each begins and the last one ends, and all of them in a row."""

    @classmethod
    def parse(cls, words: Words, columns: Columns, rows: int) -> "Block":
        """Find the columns in the content of a block, without copying it."""
        numbers, lists, at = {}, {}, 0
        for name, kind in columns.items():
            if kind == "int":
                numbers[name] = words[at : at + rows]
                at += rows
                continue
            # Bounds that do not ascend from 0 would silently give rows the numbers of others.
            bounds = words[at : at + rows + 1]
            at += rows + 1
            if len(bounds) <= rows or bounds[0] or (np.diff(bounds) < 0).any():
                raise ValueError(f"the lists of {name} have no order")
            lists[name] = bounds, words[at : at + int(bounds[-1])]
            at += int(bounds[-1])
        if at != len(words):
            raise ValueError(f"it has {len(words)} numbers instead of {at}")
        return cls(numbers, lists)

    def rows(self, places: Sequence[int] | Integers) -> Iterator[Row]:
        """Yield rows. Their lists are views of the block."""
        chosen = np.asarray(places, dtype=np.int64)
        columns: list[Sequence[Any]] = [values[chosen].tolist() for values in self.numbers.values()]
        for bounds, values in self.lists.values():
            begins, ends = bounds[chosen].tolist(), bounds[chosen + 1].tolist()
            columns.append([values[begin:end] for begin, end in zip(begins, ends, strict=True)])
        names = (*self.numbers, *self.lists)
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def filled(self, column: str, place: int, length: int) -> tuple[Words, Integers]:
        """Return lists from a row on, one after another up to a length, and where each begins.

        The first row follows the last. A list that is longer is returned whole.
        """
        bounds, values = self.lists[column]
        begin = int(bounds[place])
        if bounds[place + 1] - begin > length:
            return values[begin : bounds[place + 1]], np.zeros(1, np.int64)
        if begin + length <= len(values):  # lists are stored one after another, so this is a view
            stop = int(np.searchsorted(bounds[:-1], begin + length))
            return values[begin : begin + length], bounds[place:stop].astype(np.int64) - begin
        # Past the end of the block: go around it, as often as it takes to fill the length.
        turns = np.arange(2 + length // len(values))
        starts = (bounds[:-1] + len(values) * turns[:, None] - begin).ravel()[place:]
        return values[np.arange(begin, begin + length) % len(values)], starts[starts < length]


def rows_per_block(rows: int, size: int, run: int) -> int:
    """Return how many rows a block has, in whole runs, if the rows of a dataset have a size in bytes together."""
    if size <= BLOCK_BYTES:
        return max(1, rows)
    return max(1, round(BLOCK_BYTES * rows / size / run)) * run
