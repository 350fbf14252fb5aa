"""Seal text files: their first line holds the SHA-256 of all that follows, so that every changed bit is noticed.

Files that grow line by line have a CRC-32 in each line.

Of a JSON object the first line is its first key, ``{"sha256": "…",``; of other files it is a comment, ``# sha256: …``.
"""

import hashlib
import zlib
from pathlib import Path
from typing import NamedTuple

from polyloom.errors import DamagedError
from polyloom.io.untrusted import MAX_BYTES, read_limited

_JSON = (b'{"sha256": "', b'",')
_CRC = ', "crc": "'
_COMMENT = (b"# sha256: ", b"")


class Sealed(NamedTuple):
    """The content of a text file.

    Attributes:
        text: The text, as it was before it was sealed.
        sealed: Whether the file is sealed; those of former versions are not.
    """

    text: str
    sealed: bool


def seal(text: str) -> str:
    """Put a line with the SHA-256 of a text in front of it."""
    form, rest = (_JSON, text[1:]) if text.startswith("{") else (_COMMENT, text)
    return f"{_first_line(form, rest.encode()).decode()}\n{rest}"


def read_sealed(path: Path, limit: int = MAX_BYTES) -> Sealed:
    """Read a text file of limited size, sealed or not; raise an error if it does not match its seal."""
    return _parse(read_limited(path, limit), path)


def parse_sealed(content: bytes, source: object) -> str:
    """Return the text of a file that must be sealed; raise an error if it is not, or does not match its seal."""
    text, sealed = _parse(content, source)
    if not sealed:
        raise DamagedError(f"{source}: damaged: it is not sealed.")
    return text


def _parse(content: bytes, source: object) -> Sealed:
    for form, opening in ((_JSON, b"{"), (_COMMENT, b"")):
        if content.startswith(form[0]):
            first, _, rest = content.partition(b"\n")
            if first != _first_line(form, rest):
                hint = "" if opening else " If you changed it on purpose, delete that line."
                raise DamagedError(f"{source}: damaged: it does not match the SHA-256 in its first line.{hint}")
            return Sealed((opening + rest).decode(), sealed=True)
    return Sealed(content.decode(), sealed=False)


def seal_line(text: str) -> str:
    """Add to a JSON object on one line the CRC-32 of the line without it, as its last key."""
    return f'{text[:-1]}{_CRC}{zlib.crc32(text.encode()):08x}"}}'


def check_line(line: str) -> None:
    """Raise an error if a line does not match its CRC-32; lines of former versions have none."""
    text, sign, digest = line.rpartition(_CRC)
    if sign and digest != f'{zlib.crc32(text.encode() + b"}"):08x}"}}':
        raise ValueError("damaged: it does not match its CRC-32")


def _first_line(form: tuple[bytes, bytes], rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest().encode().join(form)
