"""Lock files and folders, so that processes do not disturb one another; a lock ends with its process.

Linux and macOS have locks of any open file or folder (`fcntl`). Windows locks bytes of open files, and can neither open
folders nor rename what is open (`CAN_LOCK_FOLDERS`).
"""

import errno
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from polyloom.io.cache import cache_folder

try:
    import fcntl

    CAN_LOCK_FOLDERS = True
except ImportError:
    CAN_LOCK_FOLDERS = False


def lock(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file or folder, until its descriptor is closed or the process ends.

    Args:
        descriptor: The file, which must be open for writing on Windows, or the folder.
        wait: Wait as long as another one holds the lock.

    Raises:
        BlockingIOError: If another one holds the lock, and `wait` is false.
        OSError: If there are no locks in this file system or operating system.
    """
    if CAN_LOCK_FOLDERS:
        # flock belongs to the open file, which forked children share: the lock ends when all have closed it.
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    while True:  # msvcrt's own waiting ends after ten seconds
        try:
            _lock_byte(descriptor)
        except BlockingIOError:
            if not wait:
                raise
            time.sleep(0.02)
        else:
            return


def lock_for_process(descriptor: int) -> None:
    """Lock an open file for this process, without waiting; on Windows, for this descriptor.

    Unlike `lock`, it may be held several times by the same process, and children do not inherit it. It ends as soon as
    any descriptor of the file is closed.

    Raises:
        BlockingIOError: If another process holds the lock.
        OSError: If there are no locks in this file system or operating system.
    """
    if CAN_LOCK_FOLDERS:
        # lockf is POSIX's record lock, which belongs to the process and the file, not to the descriptor.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        _lock_byte(descriptor)


def unlock(descriptor: int) -> None:
    """End a lock before its descriptor is closed: closing is not enough if a child was forked meanwhile."""
    if CAN_LOCK_FOLDERS:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


if sys.platform == "win32":
    import msvcrt

    _BYTE = 1 << 30  # others cannot read a locked byte; almost all files that are locked end before it

    def _lock_byte(descriptor: int) -> None:
        place = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, "locked") from None
        finally:
            os.lseek(descriptor, place, os.SEEK_SET)

else:

    def _lock_byte(_descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time do some work, of all that share a cache; the others wait as long as it takes.

    The lock ends with its process, so no process waits for a killed one. It only saves work: where the cache cannot be
    written, or has no locks, no process waits, and results must be right without it.

    Args:
        name: What the lock is for.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            path = cache_folder("locks") / hashlib.sha256(os.fsencode(name)).hexdigest()
            path.parent.mkdir(parents=True, exist_ok=True)
            # The empty file stays: if it were removed, those who wait for it would not see those who come later.
            lock(stack.enter_context(path.open("ab")).fileno())
        yield
