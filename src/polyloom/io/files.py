"""Reading corpus files line by line, plain or compressed, in bounded memory.

What is read may come from anywhere, so nothing here trusts it: lines, files and compression ratios have limits, and
whatever is wrong is a `DataError` with the number of its line.
"""

import hashlib
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from polyloom.errors import DataError

_PACKED = 32 * 1024  # small, so that the ratio of a bomb shows before much of it is unpacked
_UNPACKED = 256 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused.

    Attributes:
        line_bytes: Longest line; a sentence of several lines may not be longer either.
        total_bytes: Longest file, unpacked.
        ratio: How many times longer than packed the unpacked data may be. Text reaches 3 to 20, bombs 1000 and more.
        ratio_from: Unpacked bytes from which on the ratio counts.
        memory: What unpacking xz may take; ``xz -9`` needs 65 MiB.
    """

    line_bytes: int = 1 << 20
    total_bytes: int = 64 << 30
    ratio: int = 250
    ratio_from: int = 8 << 20
    memory: int = 128 << 20


LIMITS = Limits()


def read_lines(path: Path, *, keep_ends: bool = False, limits: Limits = LIMITS) -> Iterator[tuple[int, str]]:
    r"""Read a file's lines with their numbers, from 1.

    Lines end at ``\n`` and nowhere else: U+2028, U+0085 and the like occur inside sentences.

    Args:
        path: A plain, gzip or xz file of UTF-8 text.
        keep_ends: Keep line ends and a byte order mark; without, ``\n``, ``\r\n`` and the mark are taken off.
        limits: What is refused.

    Yields:
        Number and text of each line.
    """
    number = 0
    try:
        for number, raw in enumerate(_split(path, limits), start=1):
            line = decoded(raw, path, number)
            if not keep_ends:
                line = line.removesuffix("\n").removesuffix("\r")
                line = line.removeprefix("\ufeff") if number == 1 else line
            yield number, line
    except _LimitError as error:
        raise DataError(path, number + 1, str(error)) from None
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise DataError(path, number + 1, f"damaged compressed data ({error}). Was it downloaded in full?") from None
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}.") from None


def decoded(raw: bytes, path: Path, number: int) -> str:
    """A line as text."""
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(path, number, f"not UTF-8 (byte {error.start + 1} of the line). Convert it first.") from None
    if "\0" in line:
        raise DataError(path, number, "a NUL character. This is no text file, or it is damaged.")
    return line


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read one JSON object per line, with line numbers; empty lines are left out."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, json_object(line, path, number)


def json_object(line: str, path: Path, number: int) -> dict[str, Any]:
    """A line of JSON, which must be an object."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise DataError(path, number, "JSON is nested too deep.") from None
    except json.JSONDecodeError as error:
        raise DataError(path, number, f"not JSON: {error}.") from None
    except ValueError:
        raise DataError(path, number, "a number of thousands of digits.") from None
    if not isinstance(value, dict):
        raise DataError(path, number, 'expected an object such as {"text": "…"} on every line.')
    return value


def checked_text(value: Any, path: Path, line: int, *, name: str) -> str:
    """A string out of JSON, without what JSON can smuggle in: NUL and halves of surrogate pairs."""
    if not isinstance(value, str):
        raise DataError(path, line, f"{name!r} is not a string.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(path, line, f"{name!r} has half a surrogate pair, which is no character.") from None
    if "\0" in value:
        raise DataError(path, line, f"{name!r} has a NUL character.")
    return value


def ending_of(path: Path) -> str:
    """The ending that tells the format, such as ``.conllu``, whether or not ``.gz`` or ``.xz`` follows."""
    return path.with_suffix("").suffix if path.suffix in (".gz", ".xz") else path.suffix


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file as it lies there, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(path, None, f"cannot be read: {error.strerror or error}.") from None


class _LimitError(Exception):
    """A limit is passed; becomes a `DataError` where the line is known."""


class _Unpacker(Protocol):
    """What `lzma.LZMADecompressor` offers."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzip:
    """zlib behind the interface of lzma: keeps the input that did not fit the output."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _split(path: Path, limits: Limits) -> Iterator[bytes]:
    """Lines with their ends."""
    rest, total = b"", 0
    for chunk in _read_bytes(path, limits):
        total += len(chunk)
        if total > limits.total_bytes:
            raise _LimitError(f"more than {limits.total_bytes} bytes in this file. Split it.")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if len(line) >= limits.line_bytes:
                raise _LimitError(f"a line of more than {limits.line_bytes} bytes.")
            yield line + b"\n"
        if len(rest) >= limits.line_bytes:
            raise _LimitError(f"a line of more than {limits.line_bytes} bytes.")
    if rest:
        yield rest


def _read_bytes(path: Path, limits: Limits) -> Iterator[bytes]:
    """What a file holds, unpacked: its first bytes say how, and its name must not contradict them."""
    with path.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        if head.startswith(b"\x1f\x8b"):
            yield from _unpack(iter(lambda: file.read(_PACKED), b""), _Gunzip, limits)
        elif head == b"\xfd7zXZ\0":
            yield from _unpack(
                iter(lambda: file.read(_PACKED), b""),
                lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limits.memory),
                limits,
            )
        elif path.suffix in (".gz", ".xz"):
            raise _LimitError(f"the name ends in {path.suffix}, but this is no {path.suffix[1:]} file.")
        else:
            yield from iter(lambda: file.read(_UNPACKED), b"")


def _unpack(chunks: Iterator[bytes], start: Callable[[], _Unpacker], limits: Limits) -> Iterator[bytes]:
    """Unpack one stream after another, as `cat a.gz b.gz` makes them, with zeros as padding between them."""
    unpacker = start()
    packed = unpacked = 0
    for chunk in chunks:
        packed += len(chunk)
        data = chunk
        while data or not (unpacker.eof or unpacker.needs_input):
            if unpacker.eof:
                data = data.lstrip(b"\0")
                if not data:
                    break
                unpacker = start()
            out = unpacker.decompress(data, _UNPACKED)
            data = unpacker.unused_data if unpacker.eof else b""
            unpacked += len(out)
            if unpacked > max(limits.ratio_from, limits.ratio * packed):
                raise _LimitError(f"unpacks to more than {limits.ratio} times its size: a decompression bomb.")
            yield out
    if not unpacker.eof:
        raise EOFError("it ends in the middle")
