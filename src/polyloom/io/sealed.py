"""Seal text files: their first line holds the SHA-256 of all that follows, so that every changed bit is noticed.

Files that grow line by line have a CRC-32 in each line.

Of a JSON object the first line is its first key, ``{"sha256": "…",``; of other files it is a comment, ``# sha256: …``.
"""

import hashlib
import zlib
from pathlib import Path

from polyloom.errors import DamagedError
from polyloom.io.untrusted import MAX_BYTES, read_limited

_JSON = (b'{"sha256": "', b'",')
_CRC = ', "crc": "'
_COMMENT = (b"# sha256: ", b"")


def seal(text: str) -> str:
    """Put a line with the SHA-256 of a text in front of it."""
    form, rest = (_JSON, text[1:]) if text.startswith("{") else (_COMMENT, text)
    return f"{_first_line(form, rest.encode()).decode()}\n{rest}"


def read_sealed(path: Path, limit: int = MAX_BYTES, *, editable: bool = False) -> str:
    """Read a sealed text file of limited size, without its seal; see `parse_sealed`."""
    return parse_sealed(read_limited(path, limit), path, editable=editable)


def parse_sealed(content: bytes, source: object, *, editable: bool = False) -> str:
    """Return the text of a sealed file.

    Args:
        content: Content of the file.
        source: Name of the file, for messages.
        editable: Whether a user may change the file, and removes its seal to do so.

    Raises:
        DamagedError: The file does not match its seal, or it has none and is not editable.
    """
    for form, opening in ((_JSON, b"{"), (_COMMENT, b"")):
        if content.startswith(form[0]):
            first, _, rest = content.partition(b"\n")
            if first != _first_line(form, rest):
                hint = " If you changed it on purpose, delete that line." if editable else ""
                raise DamagedError(f"{source}: damaged: it does not match the SHA-256 in its first line.{hint}")
            return (opening + rest).decode()
    if not editable:
        raise DamagedError(f"{source}: damaged: its first line has no SHA-256.")
    return content.decode()


def seal_line(text: str) -> str:
    """Add to a JSON object on one line the CRC-32 of the line without it, as its last key."""
    return f'{text[:-1]}{_CRC}{zlib.crc32(text.encode()):08x}"}}'


def check_line(line: str) -> None:
    """Raise an error if a line does not match its CRC-32, or has none."""
    text, sign, digest = line.rpartition(_CRC)
    if not sign:
        raise ValueError("damaged: it has no CRC-32")
    if digest != f'{zlib.crc32(text.encode() + b"}"):08x}"}}':
        raise ValueError("damaged: it does not match its CRC-32")


def _first_line(form: tuple[bytes, bytes], rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest().encode().join(form)
