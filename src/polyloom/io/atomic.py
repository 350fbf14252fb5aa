"""Write files and folders atomically: a reader sees the whole content or none, even after a crash.

Everything is written under a temporary name beside its place, flushed to the disk and then renamed.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    partial = _partial(path)
    try:
        yield partial
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder for files; rename it to `path` on success and remove it on failure.

    `path` must not exist, or be an empty folder.
    """
    partial = _partial(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in (*partial.iterdir(), partial):
            _flush(file)
        partial.rename(path)
        _flush(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left in a folder."""
    for partial in folder.glob(f".*{PARTIAL}*"):
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}")


def _flush(path: Path) -> None:
    """Wait until a file's content or a folder's list of files is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
