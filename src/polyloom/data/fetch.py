"""Download corpora into the data root, from their pinned git repositories or from a mirror of a data root.

Interrupted downloads resume, hashes are verified, and a file gets its name only when it is whole.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from io import BufferedRandom
from pathlib import Path, PurePosixPath
from typing import TypeVar

import httpx2

from polyloom.data.catalog import (
    COLLECTIONS,
    NON_COMMERCIAL,
    corpus_files,
    corpus_name,
    language_of,
    parse_name,
    parse_path,
    treebanks,
)
from polyloom.errors import DataError, suggest
from polyloom.io.hashes import sha256_of
from polyloom.io.locks import lock

Progress = Callable[[str, int, int | None], None]
Result = TypeVar("Result")
SUMS = "SHA256SUMS"
MAX_BYTES = 4 << 30  # of one file; corpora are far smaller
MAX_SUMS_BYTES = 64 << 20
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 4
BACKOFF = 0.5  # seconds before the second attempt, doubled each time
MAX_REDIRECTS = 10


class _TemporaryError(Exception):
    """A failure that may pass; what came so far is kept."""


class _MissingError(DataError):
    """The server has no such file."""


def fetch(name: str, root: Path, *, mirror: str | None = None, progress: Progress | None = None) -> list[Path]:
    """Download a corpus, or all splits of it, unless it is there already.

    Args:
        name: ``ud:tr_boun/test``, or ``ud:tr_boun`` for all splits.
        root: The data root; it is created if need be. Its ``SHA256SUMS`` gets a line for each file, which is verified
            on every fetch.
        mirror: Address of a copy of a data root with a ``SHA256SUMS``; without one, the collection's own source at the
            catalogue's commit.
        progress: Called with the path below the root, the bytes so far and the bytes in all (if known).

    Returns:
        The files of the corpus.
    """
    collection, item, split = parse_name(name)
    root.mkdir(parents=True, exist_ok=True)
    sums = _read_sums(root / SUMS)
    local = {}  # files of the corpus that are under the root already, by split
    for file in corpus_files(collection, root=root, item=item):
        if split in (None, file.split):
            _verify(file.path, sums.get(file.path.relative_to(root).as_posix()))
            local[file.split] = file.path
    if split in local:
        return list(local.values())
    # Without Accept-Encoding a server may compress a file, whose length and hash would be others.
    with httpx2.Client(headers={"Accept-Encoding": "identity"}, timeout=TIMEOUT) as client:
        downloader = _Downloader(root, client, progress or (lambda *_: None))
        if mirror:
            new = _from_mirror(name, mirror.rstrip("/"), downloader, skip=local)
        else:
            new = _from_source(name, downloader, skip=local)
    return [*local.values(), *new]


def _from_mirror(name: str, mirror: str, downloader: "_Downloader", *, skip: Collection[str | None]) -> list[Path]:
    """Download the files of a corpus that a mirror lists, except some splits, with the README beside them."""
    collection, item, split = parse_name(name)
    sums = downloader.sums(f"{mirror}/{SUMS}")
    listed = {}  # item and split of each path that belongs to the collection
    for path in sums:
        if parsed := parse_path(collection, path.removeprefix(f"{NON_COMMERCIAL}/")):
            listed[path] = parsed
    paths = [path for path, parsed in listed.items() if parsed[0] == item and split in (None, parsed[1])]
    if not paths:  # name other corpora of the same language that the mirror has
        names = {corpus_name(collection, *parsed): language_of(parsed[0]) for parsed in listed.values()}
        kin = [other for other, language in names.items() if language == language_of(item)]
        raise DataError(name, None, f"{mirror} does not have it. {suggest(name, kin or names)}")
    readme = str(PurePosixPath(paths[0]).with_name("README.md"))
    paths = [path for path in paths if listed[path][1] not in skip]
    # The root's own hashes win: two mirrors with different versions must not be mixed in one root.
    known = _read_sums(downloader.root / SUMS)
    for path in [*paths, readme] if readme in sums else paths:
        if known.get(path, sums[path]) != sums[path]:
            raise DataError(
                path, None, f"{mirror} has another version than the root's {SUMS}. Use another root for it."
            )
        downloader.download(f"{mirror}/{path}", path, sums[path])
    return [downloader.root / path for path in paths]


def _from_source(name: str, downloader: "_Downloader", *, skip: Collection[str | None]) -> list[Path]:
    """Download the files of a corpus, except some splits, from the repository that publishes it."""
    collection, item, split = parse_name(name)
    source, table = COLLECTIONS[collection], treebanks(collection)
    if source.url is None:
        raise DataError(name, None, f"{collection} is not published file by file. Use a mirror: --mirror URL.")
    if table and item not in table:
        kin = [other for other in table if language_of(other) == language_of(item)]
        raise DataError(name, None, f"not in the catalogue. {suggest(item, kin or table)}")
    entry = table.get(item)
    fields = {"item": item, "repository": entry.repository if entry else "", "commit": entry.commit if entry else ""}
    prefix = f"{NON_COMMERCIAL}/" if "-NC" in (entry.licence if entry else source.licence) else ""
    known = _read_sums(downloader.root / SUMS)

    # Without a split in the name, the splits that the source has: many treebanks have no dev or train.
    files = []
    for split_name in [split] if split else [other for other in source.splits if other not in skip]:
        path = prefix + source.layout.format(split=source.splits[split_name], **fields)
        try:
            files.append(downloader.download(source.url.format(split=split_name, **fields), path, known.get(path)))
        except _MissingError as error:
            if split:
                raise DataError(name, None, f"the source has no {split} split of it ({error.path}).") from None
    if not (files or skip):
        raise DataError(name, None, "the source has none of its splits.")

    if entry:  # its README names the authors, whom the licences want named
        path = f"{prefix}{source.layout.format(split='', **fields).rpartition('/')[0]}/README.md"
        url = source.url.format(split="", **fields).rpartition("/")[0] + "/README.md"
        with suppress(_MissingError):
            downloader.download(url, path, known.get(path))
    return files


class _Downloader:
    """Downloads files to their paths below a data root, and adds their hashes to the root's ``SHA256SUMS``."""

    def __init__(self, root: Path, client: httpx2.Client, progress: Progress) -> None:
        self.root, self._client, self._progress = root, client, progress

    def sums(self, url: str) -> dict[str, str]:
        """Download a list of hashes."""

        def attempt() -> str:
            with self._get(url) as response:
                return b"".join(_limited(response, MAX_SUMS_BYTES)).decode("utf-8", "replace")

        return _parse_sums(_retried(url, attempt), url)

    def download(self, url: str, path: str, sha256: str | None) -> Path:
        """Download a file unless it is there, verify it, and note its hash."""
        target = self.root / _safe(path)
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked_part(target) as part:
                # A file that was downloaded in parts and has another hash is downloaded once more, as a whole. If that
                # has another hash too, the server has another file.
                is_resumed = True
                while is_resumed:
                    is_resumed = _retried(url, lambda: self._transfer(part, url, path, sha256))
                    part.seek(0)
                    actual = hashlib.file_digest(part, "sha256").hexdigest()
                    if sha256 in (None, actual):
                        break
                    part.truncate(0)
                else:
                    what = f"the hash is {actual}, but {sha256} is expected. The file was not kept."
                    raise DataError(url, None, what)
                # Content first, name second: after a power failure, a file under its own name is whole.
                part.flush()
                os.fsync(part.fileno())
                Path(part.name).replace(target)
                Path(part.name + ".from").unlink(missing_ok=True)
        _verify(target, sha256)
        sums = self.root / SUMS
        if path not in _read_sums(sums):
            with sums.open("a", encoding="utf-8") as out:  # one short line at a time: others may be fetching too
                out.write(f"{sha256_of(target)}  ./{path}\n")
        return target

    def _transfer(self, part: BufferedRandom, url: str, path: str, sha256: str | None) -> bool:
        """Download the missing bytes of a file; return whether they continue an earlier download."""
        done = part.seek(0, os.SEEK_END)
        note = Path(part.name + ".from")
        # With If-Range the server sends the missing bytes only if its file is still the one that the part is from.
        # Otherwise it sends the whole file. A weak tag (W/) does not promise the same bytes (RFC 9110, section 13.1.5).
        validator = None
        if done:
            with suppress(OSError, ValueError, KeyError, TypeError):  # without a usable note, start again
                content = json.loads(note.read_text(encoding="utf-8"))
                validator = content["validator"] if content["url"] == url else None
        if not isinstance(validator, str) or validator.startswith("W/"):
            validator = None
        headers = {"Range": f"bytes={done}-", "If-Range": validator} if validator else {}
        with self._get(url, headers) as response:
            is_resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
            has_start = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or (is_resumed and not has_start):
                part.truncate(0)
                raise _TemporaryError("the file has become shorter, or the server sent another range than requested")
            if not is_resumed:
                done = part.truncate(0)
                fresh = response.headers.get("ETag") or response.headers.get("Last-Modified")
                note.write_text(json.dumps({"url": url, "validator": fresh}), encoding="utf-8")
            length = response.headers.get("Content-Length")
            if length is None and sha256 is None and "Transfer-Encoding" not in response.headers:
                # The end of the connection is then the end of the file, also if it ends early.
                what = "the server does not say how long it is, so a part would pass for the whole."
                raise DataError(url, None, what)
            total = done + int(length) if length else None
            for block in _limited(response, MAX_BYTES - done):
                part.write(block)
                done += len(block)
                self._progress(path, done, total)
        return is_resumed

    @contextmanager
    def _get(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
        """Request a file; redirects lead to http and https only, and never from https to http."""
        if not url.startswith(("http://", "https://")):
            raise DataError(url, None, "not an address. Write http://… or https://….")
        try:
            request = self._client.build_request("GET", url, headers=headers)
            # The client does not follow redirects by itself: each target is judged first.
            response = self._client.send(request, stream=True)
            for _ in range(MAX_REDIRECTS):
                target = response.next_request
                if target is None or target.url.scheme not in ("https", request.url.scheme):
                    break
                response.close()
                request = target
                response = self._client.send(request, stream=True)
        except httpx2.InvalidURL as error:
            raise DataError(url, None, f"this, or where it redirects to, is not an address ({error}).") from None
        with closing(response):
            status = f"{response.status_code} {response.reason_phrase}"
            if response.status_code in (404, 410):
                raise _MissingError(url, None, "not found there.")
            # Request timeout, too early, too many requests.
            if response.status_code in (408, 425, 429) or response.is_server_error:
                raise _TemporaryError(f"the server responds with {status}")
            if target := response.next_request:
                raise DataError(url, None, f"the server responds with {status} to {target.url}, which is refused.")
            if not response.is_success and response.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise DataError(url, None, f"the server responds with {status}.")
            yield response


def _retried(url: str, attempt: Callable[[], Result]) -> Result:
    """Repeat an attempt after failures that may pass."""
    for count in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except _TemporaryError as error:
            reason = str(error)
        except httpx2.TransportError as error:  # also if a connection ends before the length that was announced
            reason = f"the connection failed ({error or type(error).__name__})"
        if count < ATTEMPTS:
            time.sleep(BACKOFF * 2 ** (count - 1))
    hint = "Run it again to resume; without this network, use --mirror URL."
    raise DataError(url, None, f"{reason}. Tried {ATTEMPTS} times. {hint}")


def _limited(response: httpx2.Response, limit: int) -> Iterator[bytes]:
    """Yield the bytes of a response as they come, up to a limit."""
    for block in response.iter_raw():  # raw: a small compressed response could unpack to any size
        limit -= len(block)
        if limit < 0:
            raise DataError(response.url, None, "far larger than such a file can be. Refused.")
        yield block


@contextmanager
def _locked_part(target: Path) -> Iterator[BufferedRandom]:
    """Open the part of a file that is there, for one process alone: two that write into it would mix their bytes."""
    path = target.with_name(target.name + ".part")
    with path.open("a+b") as part:
        try:
            lock(part.fileno(), wait=False)
        except OSError:
            raise DataError(path, None, "another process is fetching this file.") from None
        try:
            yield part
        except BaseException:
            if not part.seek(0, os.SEEK_END):  # nothing that could be resumed
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".from").unlink(missing_ok=True)
            raise


def _verify(path: Path, sha256: str | None) -> None:
    if sha256 is not None and (actual := sha256_of(path)) != sha256:
        raise DataError(
            path, None, f"the hash is {actual}, but {SUMS} has {sha256}. Remove the file to fetch it again."
        )


def _read_sums(path: Path) -> dict[str, str]:
    return _parse_sums(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


def _parse_sums(text: str, source: str) -> dict[str, str]:
    """Read lines of ``sha256sum``; a path may come twice only with the same hash."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line.rstrip("\r"))
        if match is None and line.strip():
            raise DataError(source, number, "not a line of sha256sum.")
        if match is not None:
            path = _safe(match[2])
            if sums.setdefault(path, match[1]) != match[1]:
                raise DataError(source, number, f"{path} has two hashes.")
    return sums


def _safe(path: str) -> str:
    """Return a path below the root, or raise an error."""
    # Paths come from the list of a mirror: `..`, or a backslash on Windows, would write outside of the root.
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or not path.isprintable() or "\\" in path:
        raise DataError(repr(path), None, "not a path below the data root. The list of hashes is not to be trusted.")
    return pure.as_posix()
