"""Write and read tensors as safetensors files, each with its SHA-256; large banks as many files of a few rows.

A file whose rows did not change since the previous checkpoint is a hard link to the file there. So a checkpoint is
complete by itself, removing another one does not damage it, and writing it costs the rows that changed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from polyloom.errors import DamagedError, DataError
from polyloom.io.hashes import sha256_of
from polyloom.io.untrusted import require_regular

LARGE_BYTES = 32 << 20  # of the weights of a bank; smaller banks are stored in one file with all other tensors
FILE_BYTES = 2 << 20  # of the weights in one file of a large bank, unless one row has more

Entry = Mapping[str, Any]  # of a manifest: `bank`, `rows`, `rows_per_file`, and `sha256` of each file; none for no file


class StoredBank(NamedTuple):
    """A bank, as a checkpoint is to store it."""

    name: str
    """Name of the bank."""
    parameters: tuple[str, ...]
    """Names of its parameters, whose first dimension are the rows."""
    changed: Tensor
    """For every row, whether it may differ from the one in the previous checkpoint."""

    def rows_per_file(self, weights: Mapping[str, Tensor]) -> int:
        """Return how many rows a file has; 0 if the bank is too small for files of its own."""
        num_bytes = sum(weights[name].nbytes for name in self.parameters)
        return max(1, FILE_BYTES * len(self.changed) // num_bytes) if num_bytes > LARGE_BYTES else 0


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> str:
    """Write a file of tensors; return its SHA-256."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, file)
    except SafetensorError as error:  # such as a full disk, which is an OSError everywhere else
        raise OSError(str(error)) from error
    return sha256_of(file)


def load_tensors(file: Path, digest: object) -> dict[str, Tensor]:
    """Read a file of tensors; raise an error if its SHA-256 is another one."""
    try:
        require_regular(file)
        actual = sha256_of(file)
        tensors = load_file(file)
    except (OSError, ValueError, SafetensorError, DataError) as error:
        raise DamagedError(f"{file}: not a readable checkpoint: {error}") from error
    if actual != digest:
        raise DamagedError(f"{file}: does not match its manifest. The copy is damaged or mixed up.")
    return tensors


def save_banks(
    tensors: dict[str, Tensor],
    banks: Sequence[tuple[StoredBank, int]],
    folder: Path,
    *,
    previous: tuple[Path, Sequence[Entry]] | None = None,
) -> list[Entry]:
    """Take the tensors of large banks out of `tensors`, write them into a folder and describe its files.

    Args:
        tensors: Weights, or state of an optimizer.
        banks: Banks, and the number of rows in each of their files.
        folder: The folder of the files.
        previous: The folder of the previous checkpoint, and what was returned for it.
    """
    entries: list[Entry] = []
    for bank, rows_per_file in banks:
        columns = [column for name in bank.parameters for column in _columns(name, tensors, len(bank.changed))]
        if not columns:  # no row of this bank was ever updated
            continue
        folder.mkdir(exist_ok=True)
        entry = {"bank": bank.name, "rows": len(bank.changed), "rows_per_file": rows_per_file}

        # Files of the previous checkpoint, if it cut the same bank in the same way.
        previous_digests: Sequence[str | None] = [None] * len(bank.changed)
        previous_number, previous_folder = 0, folder
        if previous is not None:
            for number, previous_entry in enumerate(previous[1]):
                if entry.items() <= previous_entry.items():
                    previous_folder, previous_number, previous_digests = previous[0], number, previous_entry["sha256"]

        digests: list[str | None] = []
        for part, changed in enumerate(torch.split(bank.changed.cpu(), rows_per_file)):
            file, first = folder / _file_name(len(entries), part), part * rows_per_file
            rows = {column.name: column.rows(first, first + rows_per_file) for column in columns}
            if not any(map(len, rows.values())):  # state of an optimizer, which has none for these rows
                digests.append(None)
                continue
            digest = None
            if not changed.any() and previous_digests[part] is not None:
                with suppress(OSError):  # no links on this file system, too many, or the checkpoint was removed
                    os.link(previous_folder / _file_name(previous_number, part), file)
                    digest = previous_digests[part]
            digests.append(digest or save_tensors(rows, file))
        entries.append(entry | {"sha256": digests})
    return entries


def list_files(file: Path, digest: object, entries: object) -> Iterator[tuple[Path, object]]:
    """List a file of tensors and those of its large banks, each with its SHA-256."""
    yield file, digest
    try:
        listed = [list(entry["sha256"]) for entry in (entries or ())]  # type: ignore[attr-defined]
    except (TypeError, KeyError) as error:
        raise DamagedError(f"{file.parent}: its manifest does not list the files of banks: {error!r}") from error
    for number, digests in enumerate(listed):
        for part, sha256 in enumerate(digests):
            if sha256 is not None:
                yield folder_of(file) / _file_name(number, part), sha256


def folder_of(file: Path) -> Path:
    """Return the folder of the files of banks that belong to a file."""
    return file.with_suffix("")


def join(parts: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """Return whole tensors from their parts."""
    return {name: tensors[0] if len(tensors) == 1 else torch.cat(list(tensors)) for name, tensors in parts.items()}


class _Column(NamedTuple):
    """A tensor of a bank, or of its state, whose rows are put into files."""

    name: str
    """Name of the tensor."""
    tensor: Tensor
    """The tensor."""
    order: Tensor | None = None
    """Indices of its rows, in the order of the bank's rows; none if they are in that order."""
    starts: Tensor | None = None
    """For every row of the bank and the end, how many rows of the tensor are before it."""

    def rows(self, first: int, last: int) -> Tensor:
        """Return the rows of the tensor that belong to some rows of the bank."""
        if self.order is None or self.starts is None:
            return self.tensor[first:last]
        end = min(last, len(self.starts) - 1)
        return self.tensor[self.order[int(self.starts[first]) : int(self.starts[end])]]


def _columns(parameter: str, tensors: dict[str, Tensor], num_rows: int) -> list[_Column]:
    """Take out the tensors of a parameter: its weight, or its state for the rows that ``rows`` lists."""
    if parameter in tensors:
        return [_Column(parameter, tensors.pop(parameter))]
    if f"{parameter}/rows" not in tensors:
        return []
    # `RowAdam` keeps rows in the order of their first update. Files have them in the order of the bank.
    rows, order = tensors[f"{parameter}/rows"].sort()
    starts = torch.searchsorted(rows, torch.arange(num_rows + 1, device=rows.device)).cpu()
    names = [name for name in tensors if name.startswith(f"{parameter}/")]
    return [_Column(name, tensors.pop(name), order, starts) for name in names]


def _file_name(number: int, part: int) -> str:
    return f"{number}-{part:06d}.safetensors"
