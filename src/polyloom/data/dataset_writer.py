"""Write datasets: shuffle rows once, however many there are, and cut them into blocks.

Rows are first spooled as they come. When their number is known, a keyed permutation gives the place of each. Rows are
then distributed to parts, each of which fits into memory, and every part is put into order and cut into blocks: two
passes over the disk, and no more memory than a part.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.data.blocks import INDEX_TYPE, LENGTH_BOUNDS, Columns, Integers, rows_per_block
from polyloom.data.encoded import FORMAT, INDEX, LENGTHS, MANIFEST, EncodedDataset, open_dataset, part_name
from polyloom.data.packing import EncodedExample, Packed, concatenated, pack, select, unpack
from polyloom.data.shuffle import permuted
from polyloom.io.atomic import atomic_dir
from polyloom.io.sealed import seal

PART_BYTES = 64 << 20
_CHUNK_BYTES = 16 << 20
_KEY = (20,)  # of the permutation; any number does


def write_dataset(
    path: Path, rows: Iterable[EncodedExample], *, columns: Columns, meta: Mapping[str, Any], run: int = 1
) -> EncodedDataset:
    """Write a dataset under a temporary name that is replaced at the end, so that no partial dataset remains.

    Args:
        path: The folder to create.
        rows: The rows, each with exactly the given columns. Memory does not depend on their number.
        columns: Name and kind of each column; ``length``, an ``int`` above 0, must be among them.
        meta: Metadata, stored as JSON; read after the last row, so that the rows may add to it.
        run: Number of rows in a row that stay together, such as lines of one text.
    """
    return write_packed(path, pack(rows, columns, name=path), columns=columns, meta=meta, run=run)


def write_packed(
    path: Path, packs: Iterable[Packed], *, columns: Columns, meta: Mapping[str, Any], run: int = 1
) -> EncodedDataset:
    """Write a dataset from rows that are packed already, see `write_dataset`."""
    with atomic_dir(path) as folder:
        spool = Spool(folder / "rows")
        longest: Integers = np.zeros(len(LENGTH_BOUNDS), np.int64)
        for packed in packs:
            spool.append(packed)
            np.maximum.at(longest, np.searchsorted(LENGTH_BOUNDS, packed.lengths), packed.lengths)
        _Writer(folder, columns, spool, longest[longest > 0], run).write(meta)
    return open_dataset(path)


class Spool:
    """Packed rows in a temporary file."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows, self.bytes = path, 0, 0
        path.touch()

    def append(self, packed: Packed) -> None:
        """Write rows behind those that are there."""
        with self.path.open("ab") as file:
            np.array([len(packed.sizes), len(packed.words)], np.int64).tofile(file)
            for values in packed:
                values.tofile(file)
        self.rows += len(packed.sizes)
        self.bytes += packed.words.nbytes

    def read(self) -> Iterator[Packed]:
        """Yield the rows in chunks of some megabytes."""
        chunk: list[Packed] = []
        with self.path.open("rb") as file:
            while len(counts := np.fromfile(file, np.int64, 2)):  # nothing is left at the end of the file
                rows, words = counts.tolist()
                chunk.append(Packed(*(np.fromfile(file, np.int32, count) for count in (words, rows, rows))))
                if sum(part.words.nbytes for part in chunk) >= _CHUNK_BYTES:
                    yield concatenated(chunk)
                    chunk = []
        if chunk:
            yield concatenated(chunk)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink()


class _Writer:
    """Writes the parts, the index and the manifest of a dataset from its spooled rows."""

    def __init__(self, folder: Path, columns: Columns, spool: Spool, longest: Integers, run: int) -> None:
        self.folder, self.columns, self.spool, self.longest, self.run = folder, columns, spool, longest, run
        self.block = rows_per_block(spool.rows, spool.bytes, run)
        num_parts = max(1, -(-spool.bytes // PART_BYTES))
        num_blocks = -(-spool.rows // self.block)
        self.blocks_per_part = max(1, -(-num_blocks // num_parts))
        self.part_rows = self.block * self.blocks_per_part

    def write(self, meta: Mapping[str, Any]) -> None:
        entries, counts, parts = [np.zeros(0, INDEX_TYPE)], [np.zeros((0, len(self.longest)), np.uint32)], []
        for number, (packed, order) in enumerate(self._parts()):
            entries_of_part, counts_of_part, size = self._write_part(self.folder / part_name(number), packed, order)
            entries.append(entries_of_part)
            counts.append(counts_of_part)
            parts.append(size)
        index, lengths = np.concatenate(entries).tobytes(), np.concatenate(counts).tobytes()
        (self.folder / INDEX).write_bytes(index)
        (self.folder / LENGTHS).write_bytes(lengths)
        manifest = {
            "format": FORMAT, "rows": self.spool.rows, "rows_per_block": self.block,
            "blocks_per_part": self.blocks_per_part, "parts": parts, "columns": dict(self.columns),
            "longest": self.longest.tolist(), "index_crc": zlib.crc32(index), "lengths_crc": zlib.crc32(lengths),
            "meta": dict(meta),
        }  # fmt: skip
        (self.folder / MANIFEST).write_text(seal(json.dumps(manifest, ensure_ascii=False)), encoding="utf-8")

    def _parts(self) -> Iterator[tuple[Packed, Integers]]:
        """Yield the rows of each part, with their order. Only rows of more than one block are shuffled."""
        if self.spool.rows <= self.part_rows:
            whole = [*self.spool.read()]
            self.spool.remove()
            if whole:
                yield concatenated(whole), np.argsort(self._places(0, self.spool.rows))
            return

        # Distribute: a row goes to the part that its place is in, together with the place.
        spools = [Spool(self.folder / f"rows-{n}") for n in range(-(-self.spool.rows // self.part_rows))]
        places_files, first = [spool.path.with_suffix(".places") for spool in spools], 0
        for packed in self.spool.read():
            place_N = self._places(first, len(packed.sizes))
            first += len(packed.sizes)
            order = np.argsort(place_N // self.part_rows, kind="stable")
            numbers, begins = np.unique((place_N // self.part_rows)[order], return_index=True)
            for number, chosen in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
                spools[number].append(select(packed, chosen))
                with places_files[number].open("ab") as file:
                    place_N[chosen].tofile(file)
        self.spool.remove()

        # Then sort each part by the places of its rows.
        for spool, places_file in zip(spools, places_files, strict=True):
            packed, place_N = concatenated([*spool.read()]), np.fromfile(places_file, np.int64)
            spool.remove()
            places_file.unlink()
            yield packed, np.argsort(place_N)

    def _places(self, first: int, count: int) -> Integers:
        """Return the places of rows in the dataset; runs keep together, and rows that fill no run come last."""
        rows = np.arange(first, first + count)
        if self.spool.rows <= self.block:
            return rows
        runs, within = np.divmod(rows, self.run)
        num_runs = self.spool.rows // self.run
        whole = runs < num_runs
        rows[whole] = permuted(runs[whole], num_runs, _KEY) * self.run + within[whole]
        return rows

    def _write_part(self, path: Path, packed: Packed, order: Integers) -> tuple[Any, Any, int]:
        """Write the blocks of a part; return their index, their counts of lengths, and the size of the part."""
        num_blocks, start, starts = -(-len(order) // self.block), 0, packed.starts()
        entries = np.zeros(num_blocks, INDEX_TYPE)
        counts = np.zeros((num_blocks, len(self.longest)), np.uint32)
        with path.open("wb") as file:
            for number in range(num_blocks):
                rows = order[number * self.block : (number + 1) * self.block]
                content, lengths = unpack(packed, self.columns, starts[rows]).tobytes(), packed.lengths[rows]
                file.write(content)
                entries[number] = (start, len(content), zlib.crc32(content))
                counts[number] = np.bincount(np.searchsorted(self.longest, lengths), minlength=len(self.longest))
                start += len(content)
        return entries, counts, start
