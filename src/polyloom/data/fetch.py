"""Bring corpora under the data root: resumed where broken off, checked by hash, in place whole or not at all."""

import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from polyloom.data.catalog import (
    COLLECTIONS,
    NON_COMMERCIAL,
    language_of,
    parse_name,
    place_of,
    places,
    treebanks,
    written,
)
from polyloom.errors import DataError, suggest
from polyloom.io.files import sha256_of
from polyloom.io.locks import lock

Progress = Callable[[str, int, int | None], None]
Result = TypeVar("Result")
SUMS = "SHA256SUMS"
MAX_BYTES = 4 << 30  # of one file; corpora are far smaller
MAX_SUMS_BYTES = 64 << 20
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 4
BACKOFF = 0.5  # seconds before the second attempt, doubled each time
_CHUNK = 1 << 16


@dataclass(frozen=True)
class _File:
    """One file to bring: from where, to which path below the root, and its hash where that is known."""

    url: str
    path: str
    sha256: str | None = None


@dataclass(frozen=True)
class _Job:
    """A download: the target directory, the known hashes, the splits that exist already, and the callback."""

    root: Path
    known: Mapping[str, str]
    splits: frozenset[str | None]
    progress: Progress


class _BrokenOffError(Exception):
    """The connection ended early; what came so far is kept."""


class _RangeError(_BrokenOffError):
    """There is nothing after what is here already."""


class _MissingError(DataError):
    """The server has no such file."""


def fetch(name: str, root: Path, *, mirror: str | None = None, progress: Progress | None = None) -> list[Path]:
    """Download a corpus, or all splits of it, unless it is there already.

    Args:
        name: ``ud:tr_boun/test``, or ``ud:tr_boun`` for all splits.
        root: The data root; it is made if need be. Its ``SHA256SUMS`` gets a line per file and is enforced ever after.
        mirror: Address of a copy of a data root with a ``SHA256SUMS``; without one, the collection's own source at the
            catalogue's commit.
        progress: Called with the path below the root, the bytes so far and the bytes in all (if known).

    Returns:
        The files of the corpus.
    """
    collection, item, split = parse_name(name)
    root.mkdir(parents=True, exist_ok=True)
    known = _read_sums(root / SUMS)
    here = {}
    for place in places(collection, root=root, item=item):
        if split in (None, place.split):
            _enforce(place.path, known.get(place.path.relative_to(root).as_posix()))
            here[place.split] = place.path
    if split not in here:
        job = _Job(root, known, frozenset(here), progress or (lambda *_: None))
        new = _from_mirror(name, mirror.rstrip("/"), job=job) if mirror else _from_source(name, job=job)
        return [*here.values(), *new]
    return list(here.values())


def _from_mirror(name: str, mirror: str, *, job: _Job) -> list[Path]:
    """Bring what a mirror's list of hashes has of a corpus, with the README that goes with it."""
    collection, item, split = parse_name(name)
    sums = _persist(f"{mirror}/{SUMS}", lambda: _download_sums(f"{mirror}/{SUMS}"))
    listed = {path: place for path in sums if (place := place_of(collection, path.removeprefix(f"{NON_COMMERCIAL}/")))}
    wanted = [path for path, place in listed.items() if place[0] == item and split in (None, place[1])]
    if not wanted:
        names = {written(collection, *place): language_of(place[0]) for place in listed.values()}
        kin = [other for other, language in names.items() if language == language_of(item)]
        raise DataError(name, None, f"{mirror} does not have it. {suggest(name, kin or names)}")
    readme = str(PurePosixPath(wanted[0]).with_name("README.md"))
    wanted = [path for path in wanted if listed[path][1] not in job.splits]
    for path in [*wanted, readme] if readme in sums else wanted:
        if job.known.get(path, sums[path]) != sums[path]:
            raise DataError(
                path, None, f"{mirror} has another version than the root's {SUMS}. Use another root for it."
            )
        _bring(_File(f"{mirror}/{path}", path, sums[path]), job)
    return [job.root / path for path in wanted]


def _from_source(name: str, *, job: _Job) -> list[Path]:
    """Bring files from where the collection is published; splits not asked for by name may be missing there."""
    collection, item, split = parse_name(name)
    source, table = COLLECTIONS[collection], treebanks(collection)
    if source.url is None:
        raise DataError(name, None, f"{collection} is not published file by file. Use a mirror: --mirror URL.")
    if table and item not in table:
        kin = [other for other in table if language_of(other) == language_of(item)]
        raise DataError(name, None, f"not in the catalogue. {suggest(item, kin or table)}")
    entry = table.get(item)
    facts = {"item": item, "repository": entry.repository if entry else "", "commit": entry.commit if entry else ""}
    prefix = f"{NON_COMMERCIAL}/" if "-NC" in (entry.licence if entry else source.licence) else ""
    brought = []
    for wanted in [split] if split else [each for each in source.splits if each not in job.splits]:
        path = prefix + source.layout.format(split=source.splits[wanted], **facts)
        try:
            brought.append(_bring(_File(source.url.format(split=wanted, **facts), path, job.known.get(path)), job))
        except _MissingError as error:
            if split:
                raise DataError(name, None, f"the source has no {split} split of it ({error.path}).") from None
    if not (brought or job.splits):
        raise DataError(name, None, "the source has none of its splits.")
    if entry:  # it names the authors, whom the licences want named
        path = f"{prefix}{source.layout.format(split='', **facts).rpartition('/')[0]}/README.md"
        url = source.url.format(split="", **facts).rpartition("/")[0] + "/README.md"
        with suppress(_MissingError):
            _bring(_File(url, path, job.known.get(path)), job)
    return brought


def _bring(file: _File, job: _Job) -> Path:
    """Download one file beside its place, check it, put it in its place, and note its hash."""
    target = job.root / _safe(file.path)
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(target.name + ".part")) as part:
            _download(file, part, progress=job.progress)
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).replace(target)
            Path(part.name + ".from").unlink(missing_ok=True)
    _enforce(target, file.sha256)
    sums = job.root / SUMS
    if file.path not in _read_sums(sums):
        with sums.open("a", encoding="utf-8") as out:  # one short line at a time: others may be fetching too
            out.write(f"{sha256_of(target)}  ./{file.path}\n")
    return target


def _download(file: _File, part: BufferedRandom, *, progress: Progress) -> None:
    """Fill the part until it is whole and has the right hash."""
    resumed = True
    while resumed:
        resumed = _persist(file.url, lambda: _transfer(file, part, progress=progress))
        part.seek(0)
        actual = hashlib.file_digest(part, "sha256").hexdigest()
        if file.sha256 in (None, actual):
            return
        part.truncate(0)  # parts of several attempts may not belong together: download it again at once
    raise DataError(file.url, None, f"the hash is {actual}, but {file.sha256} is expected. The file was not kept.")


def _persist(url: str, attempt: Callable[[], Result]) -> Result:
    """Try again after what may pass by itself."""
    for count in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except _BrokenOffError as error:
            reason = error
        if count < ATTEMPTS:
            time.sleep(BACKOFF * 2 ** (count - 1))
    hint = "Run it again to go on from where it stopped; without this network, use --mirror URL."
    raise DataError(url, None, f"{reason}. Tried {ATTEMPTS} times. {hint}")


def _download_sums(url: str) -> dict[str, str]:
    with _open(url) as response:
        text = b"".join(_blocks(response, MAX_SUMS_BYTES))
    return _parse_sums(text.decode("utf-8", "replace"), url)


def _transfer(file: _File, part: BufferedRandom, *, progress: Progress) -> bool:
    """Download the missing bytes, and return whether this continued an earlier download."""
    done = part.seek(0, os.SEEK_END)
    note = Path(part.name + ".from")
    validator = _validator(note, file.url) if done else None
    headers = {"Range": f"bytes={done}-", "If-Range": validator} if validator else {}
    try:
        opened = _open(file.url, headers)
    except _RangeError:
        part.truncate(0)
        raise
    with opened as response:
        resumed = response.status == http.client.PARTIAL_CONTENT
        if not resumed:
            done = part.truncate(0)
            fresh = response.headers.get("ETag") or response.headers.get("Last-Modified")
            note.write_text(json.dumps({"url": file.url, "validator": fresh}), encoding="utf-8")
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            part.truncate(0)
            raise _BrokenOffError("the server sent another range than was asked for")
        length = response.headers.get("Content-Length")
        if length is None and file.sha256 is None and not response.chunked:
            raise DataError(
                file.url, None, "the server does not say how long it is, so a part would pass for the whole."
            )
        total = done + int(length) if length else None
        for block in _blocks(response, MAX_BYTES - done):
            part.write(block)
            done += len(block)
            progress(file.path, done, total)
    if total is not None and done < total:
        raise _BrokenOffError(f"the connection ended after {done:,} of {total:,} bytes")
    return resumed


def _blocks(response: http.client.HTTPResponse, limit: int) -> Iterator[bytes]:
    """Yield the bytes of a response in blocks, up to a limit."""
    try:
        while block := response.read1(_CHUNK):
            limit -= len(block)
            if limit < 0:
                raise DataError(response.url, None, "far larger than such a file can be. Refused.")
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(f"the connection broke off ({error or type(error).__name__})") from error


def _validator(note: Path, url: str) -> str | None:
    """Read the validator (ETag or date) of a file whose download was interrupted."""
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        validator = noted["validator"] if noted["url"] == url else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A weak tag does not promise the same bytes.
    return validator if isinstance(validator, str) and not validator.startswith("W/") else None


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects to http and https only, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https:",) if req.full_url.startswith("https:") else ("https:", "http:")
        if not newurl.startswith(allowed):
            raise urllib.error.HTTPError(req.full_url, code, f"leads to {newurl}, which is refused", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Build an opener for http and https only; the default one of urllib also reads files."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(), _SafeRedirects(),
        urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def _open(url: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    """Ask a server; what may pass by itself is ``_BrokenOffError``, all else an error for the user."""
    if not url.startswith(("http://", "https://")):
        raise DataError(url, None, "not an address. Write http://… or https://….")
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **(headers or {})})  # noqa: S310
    try:
        response: http.client.HTTPResponse = _opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (404, 410):
                raise _MissingError(url, None, "not found there.") from None
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _RangeError("the file has become shorter") from None
            if error.code in (408, 425, 429) or error.code >= 500:
                raise _BrokenOffError(f"the server responds with {error.code} {error.reason}") from None
            raise DataError(url, None, f"the server responds with {error.code} {error.reason}.") from None
    except urllib.error.URLError as error:
        raise _BrokenOffError(f"cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(f"cannot be reached ({error or type(error).__name__})") from None
    return response


@contextmanager
def _locked(path: Path) -> Iterator[BufferedRandom]:
    """Open a part for one process alone: two that write into it would mix their bytes."""
    with path.open("a+b") as part:
        try:
            lock(part.fileno(), wait=False)
        except OSError:
            raise DataError(path, None, "another process is fetching this file.") from None
        try:
            yield part
        except BaseException:
            if not part.seek(0, os.SEEK_END):  # nothing came that could be resumed
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".from").unlink(missing_ok=True)
            raise


def _enforce(path: Path, sha256: str | None) -> None:
    if sha256 is not None and (actual := sha256_of(path)) != sha256:
        raise DataError(
            path, None, f"the hash is {actual}, but {SUMS} has {sha256}. Remove the file to fetch it again."
        )


def _read_sums(path: Path) -> Mapping[str, str]:
    return _parse_sums(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


def _parse_sums(text: str, where: str) -> dict[str, str]:
    """Read lines of ``sha256sum``; a path may come twice only with the same hash."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line.rstrip("\r"))
        if match is None and line.strip():
            raise DataError(where, number, "not a line of sha256sum.")
        if match is not None:
            path = _safe(match[2])
            if sums.setdefault(path, match[1]) != match[1]:
                raise DataError(where, number, f"{path} has two hashes.")
    return sums


def _safe(path: str) -> str:
    """Return a path below the root, or raise an error."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or not path.isprintable() or "\\" in path:
        raise DataError(repr(path), None, "not a path below the data root. The list of hashes is not to be trusted.")
    return pure.as_posix()
