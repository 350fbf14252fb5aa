"""Read and write objects of S3, Google Cloud Storage and Azure: whole or in ranges, with retries.

All requests go through obstore. What it does not promise is done here: requests are counted, the bytes of a range are
complete, and all ranges of an object come from one version of it.
"""

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache as cached
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from polyloom.errors import MissingObjectError, ObjectChangedError, PolyloomError, StorageError, suggest
from polyloom.io.range_cache import RangeCache

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import BackoffConfig, ObjectStore, RetryConfig

_Result = TypeVar("_Result")

_LONGEST_RANGE = 64 << 20  # of a whole object, so that a failure repeats at most this much
_PART = 8 << 20  # of an upload; at most _PARTS of them, since S3 takes 10,000
_PARTS = 9000
_UPLOADS = 4  # parts at once
# By scheme: how environment variables begin, and which of them hold credentials.
_SCHEMES = {
    "s3": ("AWS", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN for temporary ones"),
    "gs": ("GOOGLE", "GOOGLE_APPLICATION_CREDENTIALS, a file, or run: gcloud auth application-default login"),
    "az": ("AZURE", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    "file": ("", ""),
}
# Settings of HTTP in the environment, such as AWS_ALLOW_HTTP; obstore forgets them as soon as it is given any other.
_HTTP_SETTINGS = ("allow_http", "allow_invalid_certificates", "proxy_url", "proxy_ca_certificate", "proxy_excludes")
# Addresses at which machines in a cloud get their credentials. Elsewhere they do not respond, and waiting for them
# would hide that no credentials are set: these requests are repeated for a few seconds only.
_METADATA = re.compile(r"/latest/api/token|/latest/meta-data/|/computeMetadata/|/metadata/identity/")
_METADATA_SECONDS = 5.0
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_RANDOM = random.SystemRandom()  # the state of no other generator is touched, or shared with a child


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Limits of how long failing requests are repeated.

    Waits between two attempts double, from `first_wait` to `longest_wait`, and are shortened at random by up to half,
    so that many processes do not return at the same moment.
    """

    total: float = 120.0
    """Seconds from the first attempt after which no further one begins."""
    request: float = 60.0
    """Maximum seconds of one request, with its content."""
    stall: float = 20.0
    """Maximum seconds without a byte."""
    first_wait: float = 0.1
    """Seconds before the second attempt."""
    longest_wait: float = 10.0
    """Maximum seconds between two attempts."""


RETRY_LIMITS = RetryLimits()


@dataclass(frozen=True, slots=True)
class _Version:
    """What distinguishes two contents of an object."""

    etag: str
    size: int


class _LengthError(Exception):
    """A response has less content than was requested, or more."""


class RemoteFolder:
    """A folder in object storage: ``s3://bucket/prefix``, ``gs://…``, ``az://container/prefix`` or ``file:///folder``.

    Reading is safe from several threads. Every object keeps the version that it had when this folder first read it or
    asked for its size: later ranges come from the same content, or raise an `ObjectChangedError`. Failures that may
    pass are repeated, up to `RetryLimits`.

    Credentials and addresses come from environment variables, as obstore reads them; profiles in ``~/.aws`` are not
    read. Without variables, machines in a cloud use the role that they were given.

    * S3: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``; ``AWS_ENDPOINT_URL``
      for other services with this interface; ``AWS_SKIP_SIGNATURE=true`` for public buckets
    * Google: ``GOOGLE_APPLICATION_CREDENTIALS`` or ``GOOGLE_SERVICE_ACCOUNT``, files, or the login of gcloud;
      ``GOOGLE_SKIP_SIGNATURE=true`` for public buckets
    * Azure: ``AZURE_STORAGE_ACCOUNT_NAME``, and ``AZURE_STORAGE_ACCOUNT_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``
    * All three: ``AWS_ALLOW_HTTP=true``, ``AWS_PROXY_URL``, ``AWS_PROXY_EXCLUDES``, with ``GOOGLE_`` or ``AZURE_`` for
      the others

    Attributes:
        url: The address, without a slash at its end.
        requests: Requests made to read, with those that failed; a listing counts as one.
        bytes_read: Content that requests returned; what the cache had is not counted.
    """

    def __init__(self, url: str, *, cache: RangeCache | None = None, limits: RetryLimits = RETRY_LIMITS) -> None:
        """Prepare a folder; no request is made yet.

        Args:
            url: Address of the folder. With ``file`` it is percent-encoded, otherwise it is taken as it is.
            cache: Where ranges are kept. A range comes from there without a request if the version of the object is
                known: from the second read of the object on, or after `size`.
            limits: How long failing requests are repeated.
        """
        self.url = url.rstrip("/")
        self.requests = self.bytes_read = 0
        self._scheme, self._bucket, self._prefix = _split_url(url)
        self._limits, self._cache = limits, cache
        self._versions: dict[str, _Version] = {}
        self._lock = threading.Lock()
        try:
            import obstore.exceptions  # noqa: PLC0415 - an extra
            import obstore.store  # noqa: PLC0415
        except ImportError:
            what = "object storage needs obstore, which is not installed. Run: pip install 'polyloom[storage]'."
            raise PolyloomError(what) from None
        self._obstore: Any = obstore
        self._failures = (self._obstore.exceptions.BaseError, OSError, ValueError, NotImplementedError, _LengthError)
        # Reads are repeated here and not by obstore, which counts nothing, and takes a short response for a whole one.
        self._store = self._open({"max_retries": 0})

    def read(self, name: str) -> bytes:
        """Read a whole object: its size, unless it is known, and then its content in long ranges."""
        size = self.size(name)
        starts = range(0, size, _LONGEST_RANGE)
        return b"".join(self.read_range(name, start, min(start + _LONGEST_RANGE, size)) for start in starts)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to before `stop`, all of which must exist, with one request if none fails."""
        url = self._address(name)
        if not 0 <= start <= stop:
            raise StorageError(f"{url}: {start} to {stop} is no range of bytes.")
        version = self._versions.get(name)
        if version:
            _require_inside(url, stop, version)
        if start == stop:
            return b""
        if self._cache and version:
            content = self._cache.get(self._cache_key(name, version, start, stop))
            if content is not None:
                return content
        content, version = self._repeated(url, lambda: self._get(name, start, stop))
        if self._cache:
            self._cache.put(self._cache_key(name, version, start, stop), content)
        return content

    def size(self, name: str) -> int:
        """Return the size of an object in bytes, without a request if the object was read before."""
        url = self._address(name)
        version = self._versions.get(name) or self._same_version(name, self._repeated(url, lambda: self._head(name)))
        return version.size

    def exists(self, name: str) -> bool:
        """Ask the storage whether there is an object of this name now."""
        url = self._address(name)
        try:
            self._repeated(url, lambda: self._head(name))
        except MissingObjectError:
            return False
        return True

    def names(self) -> list[str]:
        """List the names of all objects in the folder and in those below it, sorted."""

        def request() -> list[str]:
            self._count(requests=1)
            names = (meta["path"] for meta in self._obstore.list(self._store).collect())
            return sorted(filter(None, names))  # consoles make an object without a name for a folder

        return self._repeated(self.url, request)

    def write(self, name: str, content: bytes | Path) -> None:
        """Write an object or replace it; large ones in parts. Readers see the old content until the new one is whole.

        Parts that a killed process had uploaded stay in the bucket, unseen. A lifecycle rule for incomplete uploads
        removes them.

        Args:
            name: Name of the object.
            content: Its content, or a file with it.
        """
        url = self._address(name)
        try:
            size = content.stat().st_size if isinstance(content, Path) else len(content)
        except OSError as error:
            raise StorageError(f"{content!s}: cannot be read: {error.strerror or error}.") from None

        # obstore repeats a write itself, for as long as any failure lasts. Missing credentials should be reported after
        # seconds, so they are looked for by a request whose other failures do not matter.
        def find_credentials() -> None:
            self._count(requests=1)
            try:
                self._obstore.head(self._store, name)
            except self._failures as error:
                if _is_metadata(error):
                    raise

        self._repeated(url, find_credentials)
        limits = self._limits
        waits: BackoffConfig = {
            "init_backoff": timedelta(seconds=limits.first_wait),
            "max_backoff": timedelta(seconds=limits.longest_wait),
            "base": 2,
        }
        began = time.monotonic()
        try:
            store = self._open(
                {"max_retries": 1000, "retry_timeout": timedelta(seconds=limits.total), "backoff": waits}
            )
            part = max(_PART, -(-size // _PARTS))  # rounded up
            self._obstore.put(store, name, content, chunk_size=part, max_concurrency=_UPLOADS)
        except self._failures as error:
            raise self._storage_error(url, error, f"over {time.monotonic() - began:.0f} s") from error
        finally:
            with self._lock:
                self._versions.pop(name, None)  # later reads are of the new content

    def _address(self, name: str) -> str:
        """Return the address of an object, whose name must not lead out of the folder."""
        url = f"{self.url}/{name}"
        _check_path(url, name)
        return url

    def _open(self, retries: "RetryConfig") -> "ObjectStore":
        stores = self._obstore.store
        try:
            if self._scheme == "file":
                opened: ObjectStore = stores.LocalStore(prefix=self._prefix)
                return opened
            variables = _SCHEMES[self._scheme][0]
            values = {key: os.environ.get(f"{variables}_{key.upper()}") for key in _HTTP_SETTINGS}
            options: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
            options["timeout"] = timedelta(seconds=self._limits.request)
            options["read_timeout"] = timedelta(seconds=self._limits.stall)
            kind = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[self._scheme]
            opened = kind(self._bucket, prefix=self._prefix or None, client_options=options, retry_config=retries)
        except self._failures as error:
            raise StorageError(f"{self.url}: cannot be opened: {_what_happened(error)}.") from error
        return opened

    def _get(self, name: str, start: int, stop: int) -> tuple[bytes, _Version]:
        """Request a range once."""
        options: GetOptions = {"range": (start, stop)}
        known = self._versions.get(name)
        if known and not known.etag.startswith("W/"):  # weak ones never match (RFC 9110, section 13.1.1)
            options["if_match"] = known.etag
        self._count(requests=1)
        result = self._obstore.get(self._store, name, options=options)
        version = self._same_version(name, result.meta)
        _require_inside(self._address(name), stop, version)
        content = bytes(result.bytes())
        self._count(bytes_read=len(content))
        if len(content) != stop - start:  # a length that is wrong in all headers is no error of HTTP
            raise _LengthError(f"{len(content)} bytes came instead of {stop - start}")
        return content, version

    def _head(self, name: str) -> "ObjectMeta":
        """Request an object's size and ETag once."""
        self._count(requests=1)
        try:
            meta: ObjectMeta = self._obstore.head(self._store, name)
        except FileNotFoundError:
            # The response to a HEAD has no content, so a missing object and a missing bucket look alike; a GET tells.
            self._count(requests=1)
            self._obstore.get(self._store, name, options={"range": (0, 1)})
            raise
        return meta

    def _same_version(self, name: str, meta: "ObjectMeta") -> _Version:
        """Return the version of a response; raise an error if it is not that of the first one."""
        etag = meta["e_tag"]
        if not etag:
            what = "the response has no ETag, so a changed object could not be noticed. Ask the storage's provider."
            raise StorageError(f"{self._address(name)}: {what}")
        version = _Version(etag, meta["size"])
        with self._lock:
            known = self._versions.setdefault(name, version)
        if known != version:
            raise _changed(self._address(name))
        return version

    def _count(self, *, requests: int = 0, bytes_read: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.bytes_read += bytes_read

    def _cache_key(self, name: str, version: _Version, start: int, stop: int) -> str:
        # With the version: the cache may hold ranges of a former content, from another run.
        return json.dumps([self.url, name, version.etag, version.size, start, stop])

    def _repeated(self, url: str, request: Callable[[], _Result]) -> _Result:
        """Repeat what may pass, with growing waits; raise a `StorageError` for what does not pass."""
        if os.getpid() != _first_process():
            # A forked child has none of obstore's threads and would wait for them for ever.
            what = "this process was forked from one that uses object storage. Start it by spawn."
            raise StorageError(f"{url}: {what}")
        began, wait, attempts = time.monotonic(), self._limits.first_wait, 0
        while True:
            attempts += 1
            try:
                return request()
            except self._failures as error:
                pause = wait * _RANDOM.uniform(0.5, 1.0)
                seconds = time.monotonic() - began
                patience = min(self._limits.total, _METADATA_SECONDS) if _is_metadata(error) else self._limits.total
                if not self._may_pass(error) or seconds + pause > patience:
                    raise self._storage_error(url, error, f"{attempts} times over {seconds:.0f} s") from error
            time.sleep(pause)
            wait = min(2 * wait, self._limits.longest_wait)

    def _may_pass(self, error: Exception) -> bool:
        """Return whether a failure may pass: no response, a short one, or one that tells of load."""
        passing = (self._obstore.exceptions.GenericError, _LengthError)
        if self._scheme == "file" or not isinstance(error, passing):
            return False
        # Wrong addresses and regions are generic errors of obstore too; only their text distinguishes them.
        status, text = _status_of(error), str(error)
        if status is None:
            return "builder error" not in text and "redirect" not in text
        return status >= 500 or status in (408, 429)

    def _storage_error(self, url: str, error: Exception, tried: str) -> StorageError:  # noqa: PLR0911 - one each
        """Translate an error that ends the attempts."""
        what, status, text = _what_happened(error), _status_of(error), str(error)
        variables, credentials = _SCHEMES[self._scheme]
        if isinstance(error, self._obstore.exceptions.PreconditionError):
            return _changed(url)
        if status == 416:
            known = url.removeprefix(self.url + "/") in self._versions
            return _changed(url) if known else StorageError(f"{url}: the range begins behind the object's end.")
        if any(f"<Code>{code}</Code>" in text for code in _NO_BUCKET):
            return StorageError(f"{url}: there is no bucket or container {self._bucket!r} at this storage.")
        if isinstance(error, FileNotFoundError):
            return MissingObjectError(f"{url}: there is no such object.")
        if _is_metadata(error):
            return StorageError(f"{url}: no credentials were found. Set {credentials}.")
        if status in (401, 403):
            hint = f"Check {credentials}. Some storages answer so for a missing object if names may not be listed."
            return StorageError(f"{url}: access is denied ({what}). {hint}")
        if "builder error" in text:
            return StorageError(f"{url}: the storage's address cannot be used. For http, set {variables}_ALLOW_HTTP.")
        if "redirect" in text:
            return StorageError(f"{url}: the bucket is in another region. Set {variables}_REGION.")
        if not self._may_pass(error):
            return StorageError(f"{url}: the storage refuses the request ({what}).")
        hint = "Check the network, the storage's address in the environment, and its load."
        return StorageError(f"{url}: tried {tried}, the last failure was: {what}. {hint}")


def _split_url(url: str) -> tuple[str, str, str]:
    """Split an address into scheme, bucket and prefix."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES or "://" not in url:
        raise StorageError(f"{url}: no address of a storage. {suggest(scheme, [f'{known}://' for known in _SCHEMES])}")
    if scheme == "file":
        folder = Path(unquote(rest))
        if not folder.is_absolute() or not folder.is_dir():
            raise StorageError(f"{url}: there is no such folder. An address such as file:///home/me/data names one.")
        return scheme, "", str(folder)
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    if not re.fullmatch(r"[\w$][\w.$-]*", bucket, re.ASCII):
        raise StorageError(f"{url}: {bucket!r} is no name of a bucket. Write {scheme}://bucket/folder.")
    if prefix:
        _check_path(url, prefix)
    return scheme, bucket, prefix


def _check_path(url: str, path: str) -> None:
    """Refuse names that a storage would read as another one, or that lead out of their folder."""
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        what = "has an empty part, a part . or .., or characters that are not printed"
        raise StorageError(f"{url!r}: the name of the object {what}.")


def _require_inside(url: str, stop: int, version: _Version) -> None:
    if stop > version.size:
        raise StorageError(f"{url}: the range ends at byte {stop}, behind the object's end at {version.size}.")


def _changed(url: str) -> ObjectChangedError:
    what = "the object was replaced since it was first read. Keep a dataset as it is while it is used, and start again."
    return ObjectChangedError(f"{url}: {what}")


def _is_metadata(error: Exception) -> bool:
    return _METADATA.search(str(error)) is not None


def _status_of(error: Exception) -> int | None:
    """Return the status of HTTP, which obstore tells in the message alone."""
    match = re.search(r"status code: (\d{3}) ", str(error))
    return int(match[1]) if match else None


def _what_happened(error: Exception) -> str:
    """Shorten a message of obstore, which has the whole chain of causes behind its first line."""
    message, _, debug = str(error).partition("\n\nDebug source:")
    status, code = re.search(r"status code: (\d{3}[\w -]*)", message), re.search(r"<Code>(\w+)</Code>", message)
    if status:
        return f"{status[1]}, {code[1]}" if code else status[1]
    cause = re.search(r'(?:message|error): "([^"]+)"', debug)
    what = cause[1] if cause else "no answer in time" if "TimedOut" in debug else message.rpartition(" - ")[2]
    return " ".join(what.split())[:300]


@cached
def _first_process() -> int:
    """Return the process that first used obstore."""
    return os.getpid()
