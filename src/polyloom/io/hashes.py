"""Hash files, and remember the hashes of large ones in the cache, so that a restart does not read the files again."""

import hashlib
import json
import os
import time
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from polyloom.errors import DamagedError, DataError
from polyloom.io.atomic import write_text_atomic
from polyloom.io.cache import cache_folder
from polyloom.io.locks import locked
from polyloom.io.sealed import read_sealed, seal

SMALL = 1 << 20  # bytes; smaller files are hashed every time
SETTLED = 2_000_000_000  # nanoseconds; no file system counts time in coarser units (FAT's are 2 seconds)


def remembered_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as it is stored, in hexadecimal, without reading it again while it is unchanged.

    A file is unchanged if path, size, times of change, inode and device are. The hash is remembered only if the file
    did not change while it was hashed, nor shortly before: a change within the same tick of the clock would not show.
    To check a file for damage, use `sha256_of`, which reads it: damage of a disk changes no times.
    """
    try:
        with path.open("rb") as file:  # opened in any case: only then NFS asks the server whether it changed
            if os.fstat(file.fileno()).st_size < SMALL:
                return hashlib.file_digest(file, "sha256").hexdigest()
            note = cache_folder("hashes") / hashlib.sha256(bytes(path.resolve())).hexdigest()
            if (known := _recall(note, _describe(path, file))) is not None:
                return known
            with locked(str(note)):
                started, before = time.time_ns(), _describe(path, file)
                if (known := _recall(note, before)) is not None:  # another process hashed it while this one waited
                    return known
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                is_settled = max(before["modified_ns"], before["changed_ns"]) < started - SETTLED
                if is_settled and _describe(path, file) == before:
                    with suppress(OSError):  # a cache that cannot be written
                        note.parent.mkdir(parents=True, exist_ok=True)
                        write_text_atomic(note, seal(json.dumps(before | {"sha256": sha256})))
                return sha256
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}.") from None


def sha256_of(path: Path) -> str:
    """Read a file and return its SHA-256, in hexadecimal; for corpora there is `remembered_sha256`."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}.") from None


def _describe(path: Path, file: BufferedReader) -> dict[str, Any]:
    """Describe an open file: a file with the same description has the same content."""
    status = os.fstat(file.fileno())
    return {
        "path": str(path.resolve()),
        "size": status.st_size,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,  # unlike the time of modification, no program can set it
        "inode": status.st_ino,
        "device": status.st_dev,
    }


def _recall(note: Path, description: dict[str, Any]) -> str | None:
    """Return the hash that was noted for a file; none if the note is missing, damaged, or about another state."""
    try:
        content = json.loads(read_sealed(note))
    except (OSError, ValueError, DamagedError):
        return None
    sha256 = content.get("sha256")
    return str(sha256) if content == description | {"sha256": sha256} else None
