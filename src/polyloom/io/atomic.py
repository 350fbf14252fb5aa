"""Write files and folders atomically: a reader sees the whole content or none, even after a crash.

Everything is written under a temporary name beside its place, flushed to the disk and then renamed, which POSIX and
Windows do in one step within a file system. The writer holds a lock on what it writes, which ends with its process: an
unlocked temporary file is a leftover of a killed process, and the next writer of the same name removes it. Windows
cannot rename what is open, so there nothing is locked and leftovers stay.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyloom.io.locks import CAN_LOCK_FOLDERS, lock

PARTIAL = ".partial-"  # in the names of files and folders that are being written


def write_text_atomic(path: Path, text: str) -> None:
    """Write a text file in UTF-8, or replace it."""
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file; rename it to `path` on success and remove it on failure.

    An existing file is replaced. A process that has it open keeps the old content.
    """
    with _partial(path, lambda partial: partial.touch(exist_ok=False)) as partial:
        yield partial
        # A file system may write names before contents: without the first flush, a power failure could leave an empty
        # file under the final name; without the second one, the old file, though the caller was told it is replaced.
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for files; rename it to `path` on success and remove it on failure.

    `path` must not exist, or be an empty folder. A folder inside another one that is being written is written in place:
    it appears with the outer one.
    """
    if any(part.startswith(".") and PARTIAL in part for part in path.parts):
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with _partial(path, lambda partial: partial.mkdir(parents=True)) as partial:
        yield partial
        # Flushing a folder does not flush what is in it: every file and folder is flushed, the innermost ones first.
        for inner in (*sorted(partial.rglob("*"), reverse=True), partial):
            _flush(inner)
        partial.rename(path)
        _flush(path.parent)


@contextmanager
def scratch_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside a path. It is removed at the end, or by the next writer if this one is killed."""
    with _partial(path, lambda partial: partial.mkdir(parents=True)) as partial:
        yield partial


def is_taken(path: Path) -> bool:
    """Return whether there is something at a path that `atomic_dir` could not replace: all but an empty folder."""
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files and folders that killed processes left in a folder, by default those of any name.

    Those of live processes are locked, and stay.
    """
    pattern = re.compile(rf"\.{re.escape(name) if name else '.+'}{re.escape(PARTIAL)}[0-9a-f-]+")
    for partial in folder.iterdir() if CAN_LOCK_FOLDERS and folder.is_dir() else ():
        if pattern.fullmatch(partial.name):
            with suppress(OSError):  # its writer is alive, or it is gone already
                # Anybody may put a link or a pipe of such a name here: do not follow the one or wait for the other.
                descriptor = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    lock(descriptor, wait=False)
                    _remove(partial)
                finally:
                    os.close(descriptor)


@contextmanager
def _partial(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Make a file or folder of a random name beside `path`, hold a lock on it, and remove it unless it was renamed."""
    remove_partial(path.parent, path.name)
    descriptor = None
    while True:
        # A random name: process ids would collide, since in containers they are all alike.
        partial = path.with_name(f".{path.name}{PARTIAL}{secrets.token_hex(8)}")
        make(partial)
        if not CAN_LOCK_FOLDERS:
            break
        with suppress(FileNotFoundError):
            descriptor = os.open(partial, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: there nobody can remove what others write
                lock(descriptor)
            if partial.exists():
                break
            os.close(descriptor)
        # Between `make` and `lock`, another process took it for a leftover and removed it: try another name.
    try:
        yield partial
    finally:
        _remove(partial)
        if descriptor is not None:
            os.close(descriptor)


def _remove(partial: Path) -> None:
    if partial.is_dir():
        shutil.rmtree(partial, ignore_errors=True)
    else:
        partial.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file's content or a folder's list of files is on the disk."""
    if os.name == "nt" and path.is_dir():  # a folder cannot be opened there; NTFS has its list of files in a journal
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
