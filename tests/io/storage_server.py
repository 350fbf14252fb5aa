"""A real S3 server in its own process (moto), and a proxy before it that breaks answers on demand."""

import http.client
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from typing_extensions import override

Break = Literal["status", "reset", "stall", "cut", "drip", "shorten", "narrow", "whole", "unconditional", "untagged"]


@contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Start moto's server in a process of its own and yield its address; its log is in `folder`."""
    log = folder / "moto.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            yield _address(process, log)
        finally:
            process.terminate()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    while not (match := re.search(r"Running on (http://\S+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return match[1]


def call(method: str, url: str, body: bytes = b"", **headers: str) -> bytes:
    """Send one request to the server, past the proxy, as another program would."""
    # moto does not check the signature, but without one it lets nobody read or replace an object.
    signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    headers = {"Content-Type": "application/octet-stream", "Authorization": signed} | headers
    request = urllib.request.Request(url, data=body or None, method=method, headers=headers)
    with urllib.request.urlopen(request) as response:
        content: bytes = response.read()
    return content


def environment(url: str) -> dict[str, str]:
    """Return the variables with which a process uses a server at this address."""
    return {
        "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip


@dataclass
class Fault:
    """What the proxy does to the next requests instead of passing the answer on.

    Attributes:
        kind: ``status`` answers with an error; ``reset`` closes the connection before an answer; ``stall`` never
            answers; ``cut`` closes it in the middle of the content and ``drip`` stays silent from there on;
            ``shorten`` sends half of the content with a Content-Length to match; ``narrow`` also says so in
            Content-Range; ``whole`` ignores the Range header, ``unconditional`` If-Match; ``untagged`` has no ETag.
        times: How many requests it breaks.
        status: The status of an error.
        code: The S3 code of an error.
        methods: The methods that are concerned.
    """

    kind: Break
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    methods: tuple[str, ...] = ("GET", "HEAD")


@dataclass
class Request:
    """A request as it arrived at the proxy."""

    method: str
    path: str
    headers: dict[str, str]


class Proxy:
    """An HTTP server in threads of this process that passes requests on to moto.

    Attributes:
        faults: What happens to the next requests, in this order; then they are passed on.
        requests: All requests since `clear`.
        only: Part of the paths that concern a test. The others, such as a request that the test before gave up and that
            arrives late, are passed on, but neither noted nor broken.
        before: Called before a request is passed on.
    """

    def __init__(self, upstream: str) -> None:
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.only = ""
        self.before: Callable[[Request], None] | None = None
        self.upstream = urlsplit(upstream).netloc
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def clear(self) -> None:
        self.faults, self.requests, self.only, self.before = [], [], "", None

    def seen(self, request: Request) -> Fault | None:
        """Note a request and take the fault for it, if there is one."""
        if self.only not in request.path:
            return None
        with self._lock:
            self.requests.append(request)
            fault = next((f for f in self.faults if f.times > 0 and request.method in f.methods), None)
            if fault:
                fault.times -= 1
        return fault


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # headers and content leave together

    @override
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        fault = self.proxy.seen(request)
        if self.proxy.before:
            self.proxy.before(request)
        match fault.kind if fault else None:
            case "reset":
                self._reset()
            case "stall":
                self.proxy.closing.wait()
                self._reset()
            case "status":
                assert fault
                error = f"<Error><Code>{fault.code}</Code><Message>Made by the test.</Message></Error>".encode()
                self._answer(fault.status, {"Content-Type": "application/xml"}, error)
            case kind:
                self._pass_on(kind, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _pass_on(self, kind: str | None, body: bytes) -> None:
        headers = dict(self.headers.items())
        headers.pop({"whole": "range", "unconditional": "if-match"}.get(kind or "", ""), None)
        with closing(http.client.HTTPConnection(self.proxy.upstream)) as connection:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            content = response.read()
        dropped = ["content-length", "connection", "transfer-encoding", "date", "server"]
        dropped += ["etag"] * (kind == "untagged")
        answer = {k: v for k, v in response.getheaders() if k.lower() not in dropped}
        length = int(response.getheader("Content-Length") or len(content))
        half = content[: len(content) // 2]
        if kind in ("shorten", "narrow"):
            content, length = half, len(half)
        if kind == "narrow":
            found = {k.lower(): v for k, v in answer.items()}["content-range"]
            start, size = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", found).groups()  # type: ignore[union-attr]
            answer = {k: v for k, v in answer.items() if k.lower() != "content-range"}
            answer["Content-Range"] = f"bytes {start}-{int(start) + length - 1}/{size}"
        if kind in ("cut", "drip"):
            self._answer(response.status, answer, half, length)
            if kind == "drip":
                self.proxy.closing.wait()
            self._reset()
        else:
            self._answer(response.status, answer, content, length)

    def _answer(self, status: int, headers: dict[str, str], content: bytes, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def _reset(self) -> None:
        """Close the connection so that the client sees a reset, not an orderly end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
