"""Keep ranges of remote objects on a local disk, bounded in bytes and shared by processes."""

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyloom.errors import PolyloomWarning, StorageError
from polyloom.io.locks import lock, unlock

_SUFFIX = ".range"
_DIGEST_SIZE = hashlib.sha256().digest_size
_FREED = 10  # an eviction frees a tenth of the cache, so that files are listed once for many writes


class RangeCache:
    """A folder with the content of ranges; the least recently used are removed first.

    Nothing is flushed to the disk. Each file begins with a checksum of its key and its content, so a file that is
    damaged, cut short or in another one's place counts as missing and is removed. Writers hold a lock, which ends
    with their process, so the limit holds for all processes together, and a killed writer leaves at most one partial
    file, which the next writer replaces. The folder must be on a file system with locks: a local disk.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Open a cache, or create it; what is too much for `max_bytes` is removed.

        Args:
            folder: A folder for this cache alone.
            max_bytes: Maximum size of all files together; a range that is larger is not stored.
        """
        self.folder, self.max_bytes = folder, max_bytes
        try:
            with self._locked() as total:
                _write_number(total, self._shrink(max_bytes))
        except OSError as error:
            raise StorageError(f"{folder}: cannot be used as a cache ({error.strerror or error}).") from None

    def get(self, key: str) -> bytes | None:
        """Return the content stored under a key, or None."""
        path = self._path(key)
        try:
            stored = path.read_bytes()
        except OSError:  # never stored, or just removed by another process
            return None
        content = stored[_DIGEST_SIZE:]
        if stored[:_DIGEST_SIZE] != _digest(key, content):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # removed since it was read
            os.utime(path)  # the time of use, by which `_shrink` chooses
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store content under a key; a disk that is full or fails is a warning, since everything works without."""
        size = _DIGEST_SIZE + len(content)
        if size > self.max_bytes:
            return
        stored = _digest(key, content) + content
        try:
            with self._locked() as total:
                used = _read_number(total)
                if used is None or used + size > self.max_bytes:
                    used = self._shrink(self.max_bytes - size)
                _write_number(total, used + size)  # first: if this process is killed, it is too large, not too small
                partial = self.folder / "partial"
                partial.write_bytes(stored)
                partial.replace(self._path(key))
        except OSError as error:
            what = f"{self.folder}: a range was not cached ({error.strerror or error}). Reading goes on without it."
            warnings.warn(what, PolyloomWarning, stacklevel=2)

    def _path(self, key: str) -> Path:
        return self.folder / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of all writers; yield the descriptor of the file with the total size."""
        self.folder.mkdir(parents=True, exist_ok=True)
        total = os.open(self.folder / "total", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(total)
            try:
                yield total
            finally:
                unlock(total)
        finally:
            os.close(total)

    def _shrink(self, limit: int) -> int:
        """Return the size of all files; if it is above a limit, remove the least recently used ones."""
        # The caller holds the lock, so a partial file is that of a killed writer.
        (self.folder / "partial").unlink(missing_ok=True)
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):  # damaged, and just removed by a reader
                        status = entry.stat()
                        files.append((status.st_mtime_ns, status.st_size, entry.path))
        used = sum(size for _, size, _ in files)
        if used > limit:
            for _, size, path in sorted(files):
                Path(path).unlink(missing_ok=True)
                used -= size
                if used <= limit - self.max_bytes // _FREED:
                    break
        return used


def _digest(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\0")
    digest.update(content)
    return digest.digest()


def _read_number(descriptor: int) -> int | None:
    """Read the total size; None if it was never written, or not whole."""
    os.lseek(descriptor, 0, os.SEEK_SET)  # Windows has no pread
    text = os.read(descriptor, 32)
    return int(text) if text.endswith(b"\n") and text.strip().isdigit() else None


def _write_number(descriptor: int, number: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, f"{number}\n".encode())
