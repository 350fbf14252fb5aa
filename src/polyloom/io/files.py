"""Read corpus files line by line, plain or compressed, in bounded memory.

Files are not trusted: lines, files and compression ratios have limits, and every mistake is a `DataError` with the
number of its line.
"""

import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from polyloom.errors import DataError, Location
from polyloom.io.hashes import remembered_sha256

_PACKED = 32 * 1024  # small, so that the ratio of a bomb shows before much of it is decompressed
_UNPACKED = 256 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits above which a file is refused."""

    line_bytes: int = 1 << 20
    """Maximum length of a line, and of a sentence of several lines."""
    document_bytes: int = 1 << 28
    """Maximum size of a JSON document, which is held in memory at once; SQuAD has 30 MB."""
    total_bytes: int = 64 << 30
    """Maximum size of a file, decompressed."""
    ratio: int = 250
    """Maximum compression ratio. Text reaches 3 to 20, decompression bombs 1000 and more."""
    ratio_from: int = 8 << 20
    """Decompressed size from which on the ratio is checked."""
    memory: int = 128 << 20
    """Maximum memory to decompress xz; ``xz -9`` needs 65 MiB."""


LIMITS = Limits()


def read_lines(path: Path, *, keep_ends: bool = False, limits: Limits = LIMITS) -> Iterator[tuple[int, str]]:
    r"""Read a file's lines with their numbers, from 1.

    Lines end at ``\n`` and nowhere else: U+2028, U+0085 and the like occur inside sentences.

    Args:
        path: A plain, gzip or xz file of UTF-8 text.
        keep_ends: Whether to keep line ends and a byte order mark; by default both are removed.
        limits: Limits above which the file is refused.

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
    except _FAILURES as error:
        raise _data_error(error, path, number + 1) from None


def decoded(raw: bytes, path: Path, number: int | None) -> str:
    """Decode a line, or a whole file, which has no number."""
    try:
        line = raw.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1} of the {'line' if number else 'file'}"
        raise DataError(path, number, f"not UTF-8 ({where}). Convert it first.") from None
    if "\0" in line:
        raise DataError(path, number, "a NUL character. This is no text file, or it is damaged.")
    return line


def read_json_lines(path: Path) -> Iterator[tuple[Location, dict[str, Any]]]:
    """Read one JSON object per line, each with its location; empty lines are left out."""
    for number, line in read_lines(path):
        if line.strip():
            at = Location(path, number)
            yield at, json_object(line, at)


def read_json_document(path: Path, *, limits: Limits = LIMITS) -> Any:
    """Read a file that is one JSON document."""
    content = bytearray()
    try:
        for chunk in _read_bytes(path, limits):
            content += chunk
            if len(content) > limits.document_bytes:
                raise _LimitError(f"more than {limits.document_bytes} bytes in one JSON document. Split it.")
    except _FAILURES as error:
        raise _data_error(error, path, None) from None
    return _parse_json(decoded(bytes(content), path, None).removeprefix("\ufeff"), Location(path))


def json_object(line: str, at: Location) -> dict[str, Any]:
    """Parse a line of JSON, which must be an object."""
    value = _parse_json(line, at)
    if not isinstance(value, dict):
        raise at.error('expected an object such as {"text": "…"} on every line.')
    return value


def _parse_json(text: str, at: Location) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise at.error("JSON is nested too deep.") from None
    except json.JSONDecodeError as error:
        raise at.error(f"not JSON: {error}.") from None
    except ValueError:  # Python refuses to parse them, since it takes quadratic time
        raise at.error("a number of thousands of digits.") from None


def checked_text(value: Any, at: Location, *, name: str) -> str:
    """Check a value of JSON: a string without NUL and without halves of surrogate pairs."""
    if not isinstance(value, str):
        raise at.error(f"{name!r} is not a string.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise at.error(f"{name!r} has half a surrogate pair, which is no character.") from None
    if "\0" in value:
        raise at.error(f"{name!r} has a NUL character.")
    return value


@dataclass(frozen=True)
class File:
    """A corpus file and how to read it."""

    path: Path
    format: str = ""
    """The format to read it in, named by its usual ending without the dot, such as ``tsv``. By default the ending
    decides."""
    columns: tuple[str, ...] = ()
    """The names that follow the file after ``#``: either names of columns in its first line, or names for its columns
    in order, with ``_`` for a column to leave out. By default columns are found by their names."""

    @property
    def ending(self) -> str:
        """The ending of the file's format, such as ``.tsv``."""
        return f".{self.format}" if self.format else ending_of(self.path)

    def sha256(self) -> str:
        """Hash of the file."""
        return remembered_sha256(self.path)


def as_file(source: Path | File) -> File:
    """Turn a path into a file that is read as its ending says."""
    return File(source) if isinstance(source, Path) else source


def ending_of(path: Path) -> str:
    """Return the ending of a file's format, such as ``.conllu``, whether or not ``.gz`` or ``.xz`` follows."""
    return path.with_suffix("").suffix if path.suffix in (".gz", ".xz") else path.suffix


class _LimitError(Exception):
    """A limit is exceeded; becomes a `DataError` where the line is known."""


_FAILURES = (_LimitError, zlib.error, lzma.LZMAError, EOFError, OSError)


def _data_error(error: Exception, path: Path, line: int | None) -> DataError:
    """Turn a failure to read a file into an error for the user."""
    if isinstance(error, OSError):
        return DataError(path, None, f"cannot be read: {error.strerror or error}.")
    if isinstance(error, _LimitError):
        return DataError(path, line, str(error))
    return DataError(path, line, f"damaged compressed data ({error}). Was it downloaded in full?")


class _Unpacker(Protocol):
    """The interface of `lzma.LZMADecompressor`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gunzip:
    """Wrap zlib in the interface of lzma: keeps the input that did not fit the output."""

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
    """Yield lines with their ends; a line that is too long is refused before it is in memory as a whole."""
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
    """Yield the decompressed content; the first bytes decide the compression, and the name must agree."""
    with path.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        if head.startswith(b"\x1f\x8b"):
            yield from _unpack(file, _Gunzip, limits)
        elif head == b"\xfd7zXZ\0":
            yield from _unpack(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limits.memory), limits)
        elif path.suffix in (".gz", ".xz"):
            raise _LimitError(f"the name ends in {path.suffix}, but this is no {path.suffix[1:]} file.")
        else:
            while chunk := file.read(_UNPACKED):
                yield chunk


def _unpack(file: BinaryIO, start: Callable[[], _Unpacker], limits: Limits) -> Iterator[bytes]:
    """Decompress concatenated streams, as `cat a.gz b.gz` makes them, with zeros as padding between them."""
    unpacker = start()
    packed = unpacked = 0
    while data := file.read(_PACKED):
        packed += len(data)
        # A few bytes may unpack to gigabytes: output comes in pieces of limited size, while the unpacker keeps the rest
        # of its input and needs no further one.
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
