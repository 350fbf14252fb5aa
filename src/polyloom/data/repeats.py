"""Leave out repeated rows, however many rows there are.

A set of all keys would not fit into memory. So keys are hashed into partitions on the disk: rows with the same key are
in the same partition, and one partition at a time fits. What has to be kept is one bit for every row.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyloom.data.blocks import Integers
from polyloom.data.dataset_writer import Spool
from polyloom.data.packing import Packed, select

Keys = NDArray[np.void]

# 128 bits: among a billion rows, the chance that any is taken for another is one in 10²⁰.
KEY_TYPE = np.dtype([("high", "<u8"), ("low", "<u8")])
_ENTRY_TYPE = np.dtype([*KEY_TYPE.descr, ("row", "<i8")])
PARTITIONS = 256  # of a billion rows, each has 94 MB
_WAITING = 1 << 20  # keys in memory before they are written


class Repeats:
    """Leaves out rows whose keys came before.

    Attributes:
        dropped: Number of rows that were left out, known when all rows have been yielded.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder for temporary files, which are gone when all rows have been yielded."""
        self.dropped = 0
        self._folder = folder

    def without(self, packs: Iterable[tuple[Packed, Keys]]) -> Iterator[Packed]:
        """Read all rows with their keys, then yield the first row of each key, in order."""
        # First pass: rows go to a spool, keys with the numbers of their rows to the partitions.
        spool = Spool(self._folder / "unique")
        waiting: list[Any] = []
        for packed, keys in packs:
            entries = np.empty(len(keys), _ENTRY_TYPE)
            entries["high"], entries["low"] = keys["high"], keys["low"]
            entries["row"] = spool.rows + np.arange(len(keys))
            waiting.append(entries)
            spool.append(packed)
            if sum(map(len, waiting)) >= _WAITING:
                self._write(np.concatenate(waiting))
                waiting = []
        if waiting:
            self._write(np.concatenate(waiting))

        # Second pass over the rows, without those whose bit is set.
        repeated = self._repeated_rows(spool.rows)
        first = 0
        for packed in spool.read():
            count = len(packed.sizes)
            # Bits are read in whole bytes, and those of the rows before the first one are left out.
            flags = np.unpackbits(repeated[first // 8 : (first + count + 7) // 8], bitorder="little")
            first_ones = np.flatnonzero(flags[first % 8 :][:count] == 0)
            self.dropped += count - len(first_ones)
            first += count
            yield select(packed, first_ones)
        spool.remove()

    def _partition(self, number: int) -> Path:
        return self._folder / f"keys-{number}"

    def _write(self, entries: Any) -> None:
        """Append entries to the partitions of their keys."""
        numbers = (entries["high"] >> np.uint64(56)).astype(np.int64)  # the first byte of a key: 256 partitions
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(PARTITIONS + 1))
        for number, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            if begin < end:
                with self._partition(number).open("ab") as file:
                    entries[order[begin:end]].tofile(file)

    def _repeated_rows(self, rows: int) -> NDArray[np.uint8]:
        """Return a bit for each row: whether its key came before."""
        bits = np.zeros((rows + 7) // 8, np.uint8)
        for path in filter(Path.exists, map(self._partition, range(PARTITIONS))):
            entries = np.fromfile(path, _ENTRY_TYPE)
            order = np.lexsort((entries["low"], entries["high"]))  # rows of one key stay in their order
            high, low = entries["high"][order], entries["low"][order]
            same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
            repeated: Integers = entries["row"][order[1:][same]]
            np.bitwise_or.at(bits, repeated >> 3, np.left_shift(1, repeated & 7).astype(np.uint8))
            path.unlink()
        return bits
