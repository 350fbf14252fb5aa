"""Store the encoded examples of one task in one language in a memory-mapped Arrow file, with a checksum at its end."""

import itertools
import json
import re
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyloom.errors import DataError, PolyloomError
from polyloom.io.atomic import new_file

try:
    import pyarrow as pa
except ImportError:  # prediction needs no encoded corpora, and Arrow is large
    pa = None

EncodedExample = Mapping[str, Sequence[int] | int]
ColumnKind = Literal["ints", "int"]

ROWS_PER_RECORD_BATCH = 10_000
_TYPES = {"ints": pa.list_(pa.int32()), "int": pa.int32()} if pa else {}
_META = b"polyloom.cell"
_CHECKSUM = "polyloom crc32 {:08x}\n"  # behind the Arrow file; CRC-32 is five times as fast as SHA-256
_CHECKSUM_SIZE = len(_CHECKSUM.format(0))
_CHUNK = 1 << 24
_BEGIN_AND_END = np.array([[0], [1]])


class EncodedDataset:
    """The encoded examples of one condition, read from disk on demand; safe to use from several threads.

    All record batches of a file are in one mapping of 32-bit words. A table of their offsets is enough to find any row
    by arithmetic, without an Arrow object per row.

    Attributes:
        path: The file.
        meta: The metadata that was written with it.
        columns: Names of the columns, and whether each holds a number or a list of them.
        lengths: The column ``length``.
    """

    def __init__(self, path: Path) -> None:
        """Map a file; use `open_dataset`, which reports what is wrong with it."""
        self.path = path
        mapping, checksum = _split_checksum(pa.memory_map(str(path)).read_buffer())
        if checksum is not None and checksum != _checksum(mapping):
            raise ValueError("its content does not match its checksum")
        reader = pa.ipc.open_file(mapping)
        self.columns = _read_schema(reader.schema)
        self._words = np.frombuffer(mapping, dtype=np.int32, count=mapping.size // 4)
        *batches, (_, last) = [reader.get_batch_with_custom_metadata(i) for i in range(reader.num_record_batches)]
        if last is None or _META not in last:
            raise ValueError("it was not written as a dataset")
        self.meta: dict[str, Any] = json.loads(last[_META])
        batches = [batch for batch, _ in batches]
        for batch in batches:
            batch.validate(full=True)
        self._firsts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        starts = {name: [_starts(batch.column(name), mapping) for batch in batches] for name in self.columns}
        self._starts = {name: np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy() for name, pairs in starts.items()}
        lengths = [batch.column("length").to_numpy() for batch in batches]
        self.lengths: NDArray[np.int32] = np.concatenate([np.zeros(0, np.int32), *lengths])
        if len(self) and self.lengths.min() < 1:
            raise ValueError("a length is less than 1")
        if checksum is None:
            raise ValueError("it has no checksum; a former version wrote it")

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def rows(self, indices: Sequence[int] | NDArray[np.int64]) -> list[dict[str, NDArray[np.int32] | int]]:
        """Return rows in the given order. Lists are read-only views of the file."""
        wanted = np.asarray(indices, dtype=np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"{self.path}: rows {wanted.min()} to {wanted.max()} of {len(self)}")
        batches = np.searchsorted(self._firsts, wanted, side="right") - 1
        places = wanted - self._firsts[batches]
        columns = [self._column(name, batches, places) for name in self.columns]
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*columns, strict=True)]

    def _column(self, name: str, batches: NDArray[np.int64], places: NDArray[np.int64]) -> list[Any]:
        words, (offsets, numbers) = self._words, self._starts[name]
        places = places + offsets[batches]
        if self.columns[name] == "int":
            values: list[Any] = words[places].tolist()
            return values
        begins, ends = (words[places + _BEGIN_AND_END] + numbers[batches]).tolist()
        return [words[begin:end] for begin, end in zip(begins, ends, strict=True)]


def open_dataset(path: Path) -> EncodedDataset:
    """Open a dataset and check its checksum; a file that is missing or damaged is a `DataError`."""
    _require_arrow()
    try:
        return EncodedDataset(Path(path))
    except FileNotFoundError:
        raise DataError(path, None, "no such dataset. Prepare the corpus first.") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        what = f"not a readable dataset ({error}). Remove it and prepare the corpus again."
        raise DataError(path, None, what) from error


def write_dataset(
    path: Path, rows: Iterable[EncodedExample], *, columns: Mapping[str, ColumnKind], meta: Mapping[str, Any]
) -> EncodedDataset:
    """Write rows as they come, under a temporary name that is replaced at the end, so that no partial file remains.

    Args:
        path: The file to create or replace; readers of the old file are not disturbed.
        rows: The rows, each with exactly the given columns.
        columns: Name and kind of each column; ``length``, an ``int`` above 0, must be among them.
        meta: Metadata, stored as JSON; read after the last row, so that the rows may add to it.
    """
    _require_arrow()
    if columns.get("length") != "int":
        raise DataError(path, None, "a dataset needs a column `length` of kind int.")
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as partial:
        with partial.open("wb") as file, pa.ipc.new_file(file, schema) as writer:
            iterator, number = iter(rows), 0
            while chunk := list(itertools.islice(iterator, ROWS_PER_RECORD_BATCH)):
                writer.write_batch(_record_batch(chunk, schema, path, number))
                number += len(chunk)
            # The metadata describes all rows, so a last batch without rows carries it.
            empty = pa.RecordBatch.from_pylist([], schema=schema)
            writer.write_batch(empty, custom_metadata={_META: json.dumps(dict(meta))})
        _append_checksum(partial)
    return open_dataset(path)


def _append_checksum(path: Path) -> None:
    checksum = _checksum(pa.memory_map(str(path)).read_buffer())
    with path.open("ab") as file:
        file.write(checksum)


def _split_checksum(buffer: Any) -> tuple[Any, bytes | None]:
    """Split a file into its Arrow content and the checksum behind it; files of former versions have none."""
    content = buffer.slice(0, max(0, buffer.size - _CHECKSUM_SIZE))
    checksum = buffer.slice(content.size).to_pybytes()
    return (content, checksum) if re.fullmatch(rb"polyloom crc32 .{8}\n", checksum, re.DOTALL) else (buffer, None)


def _checksum(buffer: Any) -> bytes:
    """Compute the checksum of a file in chunks, so that a large mapping is not held in memory at once."""
    value, view = 0, memoryview(buffer)
    for start in range(0, len(view), _CHUNK):
        value = zlib.crc32(view[start : start + _CHUNK], value)
    return _CHECKSUM.format(value).encode()


def _require_arrow() -> None:
    if pa is None:
        raise PolyloomError("training needs pyarrow, which is not installed. Run: pip install 'polyloom[train]'.")


def _record_batch(rows: list[EncodedExample], schema: Any, path: Path, number: int) -> Any:
    names = set(schema.names)
    for i, row in enumerate(rows, number):
        if row.keys() != names:
            what = f"row {i} has the columns {', '.join(row)}. Known: {', '.join(schema.names)}."
            raise DataError(path, None, what)
    arrays = []
    for field in schema:
        try:
            arrays.append(_column([row[field.name] for row in rows], field.type))
        except (TypeError, OverflowError) as error:
            what = f"rows {number} to {number + len(rows) - 1}, column {field.name}: {error}."
            raise DataError(path, None, what) from error
    lengths = arrays[schema.names.index("length")].to_numpy()
    if lengths.min() < 1:
        raise DataError(path, None, f"row {number + int(lengths.argmin())}: its length is {lengths.min()}.")
    return pa.record_batch(arrays, schema=schema)


def _column(values: list[Any], kind: Any) -> Any:
    # Arrow would take 1.5 for 1 and nothing for a gap; Python's arrays of 32-bit numbers refuse both.
    if not pa.types.is_list(kind):
        return pa.array(np.array(array("i", values), dtype=np.int32))
    numbers = np.array(array("i", itertools.chain.from_iterable(values)), dtype=np.int32)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, numbers)


def _read_schema(schema: Any) -> dict[str, str]:
    kinds = {kind_type: kind for kind, kind_type in _TYPES.items()}
    for field in schema:
        if field.type not in kinds:
            raise ValueError(f"its column {field.name} is of type {field.type}")
    if "length" not in schema.names:
        raise ValueError("it has no column length")
    return {field.name: kinds[field.type] for field in schema}


def _starts(column: Any, mapping: Any) -> tuple[int, int]:
    """Return where a column of numbers begins, or the offsets and the numbers of lists, in 32-bit words of the file."""
    if column.offset or column.null_count:
        raise ValueError("a column has gaps")
    if not pa.types.is_list(column.type):
        return _position(column.buffers()[1], mapping), 0
    if column.values.null_count:
        raise ValueError("a list has gaps")
    offsets, numbers = column.buffers()[1], column.values.buffers()[1]
    return _position(offsets, mapping), _position(numbers, mapping)


def _position(buffer: Any, mapping: Any) -> int:
    if buffer is None or buffer.size == 0:  # only empty lists
        return 0
    position, rest = divmod(buffer.address - mapping.address, 4)
    if rest or not 0 <= position <= mapping.size // 4 - buffer.size // 4:
        raise ValueError("a column is compressed or out of place")
    return int(position)
