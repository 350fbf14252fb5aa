"""Let one process do what several need: whoever comes first does it, the others wait and find it done."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from polyloom.io.cache import cache_folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let in one process at a time, of all that have the same cache; the others wait as long as it takes.

    The lock ends with its process, so nobody waits for a killed one. It saves work, but nothing may depend on it:
    where the cache cannot be written, or has no locks, everybody is let in.

    Args:
        name: What the lock is for.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            path = cache_folder("locks") / hashlib.sha256(os.fsencode(name)).hexdigest()
            path.parent.mkdir(parents=True, exist_ok=True)
            # The empty file stays: if it were removed, those who wait for it would not see those who come later.
            fcntl.flock(stack.enter_context(path.open("ab")), fcntl.LOCK_EX)
        yield
