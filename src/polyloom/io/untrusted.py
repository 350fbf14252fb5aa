"""Read files and show text from untrusted sources.

Only regular files of limited size are read: a pipe or a device can make a reader wait for ever, and a link can lead to
any file of the machine. Control characters are escaped before text is shown: they can move the cursor of a terminal,
reverse the order of letters, and forge lines of a file.
"""

import re
import stat
from pathlib import Path

MAX_BYTES = 16 << 20  # of a text file that is parsed as a whole
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST = 1000  # letters of a line


def require_regular(path: Path) -> int:
    """Return the size of a file; raise an error unless it is a regular file in its folder.

    Links inside the folder are followed, and those in the cache of the Hugging Face Hub, whose snapshots are links.
    """
    try:
        real = path.resolve(strict=True)
    except RuntimeError as error:  # what Python 3.11 and 3.12 raise
        raise OSError("is a link to itself.") from error
    # huggingface_hub keeps models as models--org--name/snapshots/COMMIT/file, a link to models--org--name/blobs/HASH.
    blobs = path.absolute().parent.parent.parent / "blobs"
    if path.is_symlink() and not any(real.is_relative_to(home.resolve()) for home in (path.parent, blobs)):
        raise OSError(f"is a link to {real}, outside its folder. Copy that file here.")
    status = real.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("is not a regular file.")
    return status.st_size


def read_limited(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file of limited size."""
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(limit + 1)  # not the size of the file: it may grow after it was asked for
    if len(content) > limit:
        raise OSError(f"is larger than {limit:,} bytes.")
    return content


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters, line ends, marks of writing direction or halves of pairs."""
    return _CONTROL.search(text) is None


def printable(text: str) -> str:
    """Escape what is not printable, such as line ends."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def for_terminal(text: object) -> str:
    """Return a message of several lines for a terminal: each of limited length, and printable."""
    lines = str(text).split("\n")
    return "\n".join(printable(line[:_LONGEST]) + "…" * (len(line) > _LONGEST) for line in lines)
