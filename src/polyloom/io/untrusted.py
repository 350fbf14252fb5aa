"""Read files that strangers may have written: regular files only, of limited size.

A pipe or a device can make a reader wait for ever, and a link can lead to any file of the machine.
"""

import stat
from pathlib import Path

MAX_BYTES = 16 << 20  # of a text file that is parsed as a whole


def require_regular(path: Path) -> int:
    """Return the size of a file; raise an error unless it is a regular file in its folder.

    Links inside the folder are followed, and those in the cache of the Hugging Face Hub, whose snapshots are links.
    """
    try:
        real = path.resolve(strict=True)
    except RuntimeError as error:  # what Python 3.11 and 3.12 raise
        raise OSError("is a link to itself.") from error
    cache = path.absolute().parent.parent.parent / "blobs"
    if path.is_symlink() and not any(real.is_relative_to(home.resolve()) for home in (path.parent, cache)):
        raise OSError(f"is a link to {real}, outside its folder. Copy that file here.")
    status = real.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("is not a regular file.")
    return status.st_size


def read_limited(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file of limited size."""
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"is larger than {limit:,} bytes.")
    return content
