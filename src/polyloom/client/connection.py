"""HTTP to one server: connections that stay open, and errors that say what to do."""

import contextlib
import json
import os
import random
import socket
import ssl
import time
from collections.abc import Iterator
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from typing import Any
from urllib.parse import urlsplit

from polyloom.errors import PASSED_ON, DeadlineError, PolyloomError, UnavailableError

PAUSE = 0.5  # seconds before a request is sent again if the server does not say; doubled each time
LONGEST_PAUSE = 8.0
JITTER = 0.5  # share of a pause that is added by chance, so that clients do not come back all at once
RETRIED = (429, 502, 503)
MOST = 1 << 20  # bytes of a problem that are read
_ERRORS: dict[int, type[PolyloomError]] = {kind.status: kind for kind in PASSED_ON} | {502: UnavailableError}


class TryAgainError(Exception):
    """A request failed in a way that may pass.

    Attributes:
        error: What to raise if it does not.
        after: Seconds that the server asked to wait.
    """

    def __init__(self, error: PolyloomError, after: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.after = error, after


class Patience:
    """The time that is left for a request and its repetitions."""

    def __init__(self, seconds: float) -> None:
        self._end, self._pause = time.monotonic() + seconds, PAUSE

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(self._end - time.monotonic(), 0.001)

    def wait(self, after: float = 0.0) -> bool:
        """Wait before the next attempt, at least as long as the server asked for; return whether there is time."""
        pause = max(after, self._pause) * (1 + JITTER * random.random())  # noqa: S311 - no secret
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if pause >= self.left:
            return False
        time.sleep(pause)
        return True


class Connection:
    """HTTP to one server. Connections stay open for further requests; threads and processes share none.

    Args:
        url: Where the server is, such as ``http://localhost:8000``.
        key: API key. Default: none.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._secure, self._host, self._port, self._prefix = _parse(self.url)
        self._headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson, application/json"}
        self._has_key = bool(key)
        if key:
            if not (key.isascii() and key.isprintable()):
                raise PolyloomError(f"{self.url}: the API key has characters that cannot be sent. Is it the right one?")
            self._headers["Authorization"] = f"Bearer {key}"
        self._idle: list[tuple[int, HTTPConnection]] = []

    def close(self) -> None:
        """Close all connections; a further request opens another."""
        while self._idle:
            self._idle.pop()[1].close()

    def json(self, path: str, *, timeout: float) -> Any:
        """Get JSON, which is ``None`` if it is something else."""
        content = b"".join(self.lines(path, timeout=timeout))
        try:
            return json.loads(content)
        except ValueError:
            return None

    def lines(self, path: str, body: bytes | None = None, *, timeout: float) -> Iterator[bytes]:
        """Get a path, or post to it, and yield the lines of the response as they arrive.

        Args:
            path: Path on the server.
            body: What is posted. Default: nothing.
            timeout: Seconds without any byte after which the server is given up.

        Raises:
            TryAgainError: The server is not there, is full, or closed the connection.
            PolyloomError: The server refused the request.
        """
        connection, response = self._send(path, body, timeout)
        try:
            if response.status != 200:
                raise self._failure(path, response)
            yield from response
        except (OSError, HTTPException) as error:
            raise self._lost(error, timeout) from error
        finally:
            if response.isclosed():  # everything was read
                self._idle.append((os.getpid(), connection))
            else:
                response.close()
                connection.close()

    def _send(self, path: str, body: bytes | None, timeout: float) -> tuple[HTTPConnection, HTTPResponse]:
        while True:
            connection, was_open = self._take(timeout)
            try:
                connection.request("GET" if body is None else "POST", self._prefix + path, body, self._headers)
                return connection, connection.getresponse()
            except (OSError, HTTPException) as error:
                connection.close()
                if not was_open or isinstance(error, TimeoutError):  # servers close connections that are long idle
                    raise self._lost(error, timeout) from error

    def _take(self, timeout: float) -> tuple[HTTPConnection, bool]:
        """Return a connection, and whether it is open already."""
        with contextlib.suppress(IndexError):
            while True:
                process, connection = self._idle.pop()
                if process == os.getpid() and connection.sock is not None:  # else its parent uses it
                    connection.timeout = timeout
                    connection.sock.settimeout(timeout)
                    return connection, True
        kind = HTTPSConnection if self._secure else HTTPConnection
        return kind(self._host, self._port, timeout=timeout), False

    def _failure(self, path: str, response: HTTPResponse) -> Exception:
        """Make an error of a response that is not what was asked for."""
        status, content = response.status, response.read(MOST)
        if status == 401:
            known = "does not accept this API key" if self._has_key else "needs an API key"
            return PolyloomError(
                f"{self.url}: the server {known}. Give connect(url, key=…) the right one; polyloom predict takes it "
                "from the environment variable POLYLOOM_API_KEY."
            )
        try:
            error = error_of(json.loads(content))
        except (ValueError, LookupError, TypeError):  # it is not ours, but that of a proxy, or of another server
            moved = f", moved to {response.headers['Location']}" if "Location" in response.headers else ""
            what = f"{path} was answered with status {status} ({response.reason}{moved})"
            hint = "" if status in RETRIED else " Is this the address of a server that `polyloom serve` started?"
            error = error_of({"status": status if status in RETRIED else None, "detail": f"{self.url}: {what}.{hint}"})
        after = response.headers.get("Retry-After", "")
        return TryAgainError(error, float(after) if after.isdecimal() else 0.0) if status in RETRIED else error

    def _lost(self, error: Exception, timeout: float) -> Exception:
        """Make an error of a connection that cannot be opened, or was lost."""
        match error:
            case TimeoutError():
                return DeadlineError(f"{self.url}: no answer within {timeout:.3g} seconds.")
            case ConnectionRefusedError():
                what = "nobody listens there. Is the server running, and is this its port?"
            case socket.gaierror():
                what = f"there is no host {self._host!r}."
            case ssl.SSLError():
                return PolyloomError(f"{self.url}: no secure connection ({error}). Is it an http:// server?")
            case BadStatusLine() if not isinstance(error, RemoteDisconnected):
                return PolyloomError(f"{self.url}: what listens there does not speak HTTP. Is it an https:// server?")
            case _:
                what = f"the connection was lost ({error or type(error).__name__})."
        return TryAgainError(UnavailableError(f"{self.url}: {what}"))


def error_of(problem: Any) -> PolyloomError:
    """Make the error that a server described (RFC 9457)."""
    return _ERRORS.get(problem["status"], PolyloomError)(problem["detail"])


def _parse(url: str) -> tuple[bool, str, int | None, str]:
    """Return whether a connection is secure, the host, the port, and what stands before all paths."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        plain = not (parts.username or parts.query or parts.fragment)
        if parts.scheme in ("http", "https") and parts.hostname and plain and url.isascii() and url.isprintable():
            return parts.scheme == "https", parts.hostname, parts.port, parts.path
    raise PolyloomError(f"{url!r} is not the address of a server, such as http://localhost:8000 or https://host.")
