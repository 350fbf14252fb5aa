"""Read the encoded examples of one condition, block by block.

A dataset is a folder of blocks: ``manifest.json``; ``blocks.bin``, the place of each block with its checksum;
``lengths.bin``, how many rows of each block are of each bucket of lengths; and parts with the blocks themselves.
The memory that a process needs grows with the number of blocks, not of rows.
"""

import json
import mmap
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyloom.data.blocks import INDEX_TYPE, Block, Columns, Integers, Row, Words
from polyloom.errors import DamagedError, DataError
from polyloom.io.sealed import parse_sealed

FORMAT = 1  # of encoded datasets; raise it when the encoding or the files change
MANIFEST, INDEX, LENGTHS = "manifest.json", "blocks.bin", "lengths.bin"
CACHED_BYTES = 256 << 20  # of blocks that were read lately, of all datasets of a process


def part_name(number: int) -> str:
    """Return the name of a part."""
    return f"part-{number:05d}.bin"


class Folder(Protocol):
    """Where the files of a dataset are: on disk, or in object storage."""

    def read(self, name: str) -> bytes | memoryview:
        """Return the content of a file."""

    def read_range(self, name: str, start: int, stop: int) -> bytes | memoryview:
        """Return a part of the content of a file."""


class LocalFolder:
    """A folder on disk, whose files are mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._maps: dict[str, memoryview] = {}

    def read(self, name: str) -> memoryview:
        """Map a file."""
        if name not in self._maps:
            with (self.path / name).open("rb") as file:
                empty = file.seek(0, 2) == 0
                content = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps[name] = memoryview(content)
        return self._maps[name]

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Return a view of a part of a file."""
        return self.read(name)[start:stop]

    def close(self) -> None:
        """Unmap all files, each as soon as no array views it."""
        self._maps.clear()


class EncodedDataset:
    """The encoded examples of one condition, read on demand; safe to use from several threads.

    Attributes:
        path: The folder, or its address.
        meta: The metadata that was written with it.
        columns: Names of the columns, and whether each holds a number or a list of them.
        rows_per_block: Number of rows of a block; the last one may have fewer.
        num_blocks: Number of blocks.
        num_bytes: Size of all blocks.
        longest: The longest row of each bucket of lengths, in ascending order.
    """

    def __init__(self, folder: Folder, path: Path | str) -> None:
        """Read manifest and index; use `open_dataset`, which reports what is wrong with them."""
        self.path, self._folder = path, folder
        manifest = json.loads(parse_sealed(bytes(folder.read(MANIFEST)), path))
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']} instead of {FORMAT}")
        self.meta: dict[str, Any] = manifest["meta"]
        self.columns: Columns = manifest["columns"]
        self.rows_per_block, self._blocks_per_part = manifest["rows_per_block"], manifest["blocks_per_part"]
        self.longest: Integers = np.array(manifest["longest"], dtype=np.int64)
        self.num_bytes = sum(manifest["parts"])
        self._rows, self._lengths_crc = manifest["rows"], manifest["lengths_crc"]
        self.num_blocks = -(-self._rows // self.rows_per_block)
        self._index = np.frombuffer(self._checked(INDEX, manifest["index_crc"]), dtype=INDEX_TYPE)
        # A file that was cut off is noticed now, not when training comes to its last blocks.
        if isinstance(folder, LocalFolder):
            for number, size in enumerate(manifest["parts"]):
                if len(folder.read(part_name(number))) != size:
                    raise ValueError(f"{part_name(number)} does not have {size} bytes")

    def __len__(self) -> int:
        return int(self._rows)

    def rows(self, indices: Sequence[int] | Integers) -> list[Row]:
        """Return rows in the given order. Lists are read-only views."""
        numbers = np.asarray(indices, dtype=np.int64)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"{self.path}: rows {numbers.min()} to {numbers.max()} of {len(self)}")
        blocks, places = np.divmod(numbers, self.rows_per_block)
        if numbers.size and (blocks == blocks[0]).all():  # nearly always: a draw is a part of one block
            return list(self._block(int(blocks[0])).rows(places))
        rows: list[Row] = [{}] * len(numbers)
        for block in np.unique(blocks).tolist():
            positions = np.flatnonzero(blocks == block)
            for position, row in zip(positions.tolist(), self._block(block).rows(places[positions]), strict=True):
                rows[position] = row
        return rows

    def filled(self, index: int, column: str, length: int) -> tuple[Words, Integers]:
        """Return the lists of a column from a row on, up to a length, and where each begins; see `Block.filled`."""
        number, place = divmod(index, self.rows_per_block)
        return self._block(number).filled(column, place, length)

    def bucket_counts(self) -> NDArray[np.uint32]:
        """Return how many rows of each block are of each bucket of lengths."""
        try:
            counts = np.frombuffer(self._checked(LENGTHS, self._lengths_crc), dtype=np.uint32)
        except (OSError, ValueError) as error:
            raise _unreadable(self.path, error) from error
        return counts.reshape(self.num_blocks, len(self.longest))

    def lengths(self, first: int, last: int) -> Words:
        """Return the lengths of the rows of the blocks from `first` to `last`, exclusive."""
        return np.concatenate([block.numbers["length"] for block in self._blocks(first, last)])

    def check(self) -> None:
        """Read all blocks, so that damage is found now."""
        self.lengths(0, self.num_blocks)

    def close(self) -> None:
        """Forget all blocks in memory, and close the files. What is read later opens them again.

        Whoever opens datasets closes them. Left to Python, the files of a run would stay open until its garbage
        collector finds the cycles of the trainer, and blocks until others take their place.
        """
        _CACHE.drop(self)
        if isinstance(self._folder, LocalFolder):
            self._index = self._index.copy()  # else it would keep its file mapped
            self._folder.close()

    def _block(self, number: int) -> Block:
        (block,) = self._blocks(number, number + 1)
        return block

    def _blocks(self, first: int, last: int) -> Iterator[Block]:
        """Yield blocks. Those of a part that are not in memory are read at once, by one thread if several need them."""
        blocks: dict[int, Block] = {}
        for number in range(first, last):
            if number not in blocks and (cached := _CACHE.get((self, number))) is not None:
                blocks[number] = cached
            if number not in blocks:
                with _READING[hash((self, number)) % len(_READING)]:
                    stop = min((number // self._blocks_per_part + 1) * self._blocks_per_part, last)
                    blocks |= self._read(number, stop)
            yield blocks.pop(number)

    def _read(self, first: int, stop: int) -> dict[int, Block]:
        """Read the blocks of one part from `first` to the next one that is in memory; `first` itself may be by now."""
        if (cached := _CACHE.get((self, first))) is not None:
            return {first: cached}
        last = first + 1
        while last < stop and _CACHE.get((self, last)) is None:
            last += 1
        starts, sizes = (self._index[field][first:last].tolist() for field in ("start", "size"))
        part = part_name(first // self._blocks_per_part)
        content = memoryview(self._folder.read_range(part, starts[0], starts[-1] + sizes[-1]))
        numbered = zip(range(first, last), starts, sizes, strict=True)
        return {number: self._parse(number, content[start - starts[0] :][:size]) for number, start, size in numbered}

    def _parse(self, number: int, content: memoryview) -> Block:
        try:
            if zlib.crc32(content) != self._index[number]["crc"]:
                raise ValueError("it does not match its checksum")
            words = np.frombuffer(content, dtype=np.int32)
            words.flags.writeable = False
            rows = min(self.rows_per_block, len(self) - number * self.rows_per_block)
            block = Block.parse(words, self.columns, rows)
        except ValueError as error:
            what = f"block {number} is damaged ({error}). Remove this dataset and prepare the corpus again."
            raise DataError(self.path, None, what) from error
        _CACHE.put((self, number), block, len(content))
        return block

    def _checked(self, name: str, crc: int) -> bytes | memoryview:
        content = self._folder.read(name)
        if zlib.crc32(content) != crc:
            raise ValueError(f"{name} does not match its checksum")
        return content


class _BlockCache:
    """The blocks that were read last, of all datasets, bounded in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._lock = limit, 0, Lock()
        self._blocks: OrderedDict[tuple[EncodedDataset, int], tuple[Block, int]] = OrderedDict()

    def get(self, key: tuple[EncodedDataset, int]) -> Block | None:
        with self._lock:
            if key not in self._blocks:
                return None
            self._blocks.move_to_end(key)
            return self._blocks[key][0]

    def put(self, key: tuple[EncodedDataset, int], block: Block, size: int) -> None:
        with self._lock:
            if key in self._blocks:
                return
            self._blocks[key] = block, size
            self._bytes += size
            while self._bytes > self._limit and len(self._blocks) > 1:
                self._bytes -= self._blocks.popitem(last=False)[1][1]

    def drop(self, dataset: EncodedDataset) -> None:
        with self._lock:
            for key in [key for key in self._blocks if key[0] is dataset]:
                self._bytes -= self._blocks.pop(key)[1]


_CACHE = _BlockCache(CACHED_BYTES)
_READING = tuple(Lock() for _ in range(64))  # held while a block is read, so that no other thread reads it as well


def open_dataset(path: Path | str, folder: Folder | None = None) -> EncodedDataset:
    """Open a dataset, on disk unless a folder is given; one that is missing or damaged is a `DataError`.

    Blocks are checked when they are read.
    """
    try:
        return EncodedDataset(folder or LocalFolder(Path(path)), path)
    except FileNotFoundError:
        raise DataError(path, None, "no such dataset. Prepare the corpus first.") from None
    except (OSError, ValueError, KeyError, TypeError, DamagedError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path | str, error: Exception) -> DataError:
    return DataError(path, None, f"not a readable dataset ({error}). Remove it and prepare the corpus again.")
