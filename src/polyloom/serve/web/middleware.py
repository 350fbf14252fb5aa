"""What happens to every request, whatever its route: its body is limited, it ends with its client, and it is logged.

They are plain ASGI, since they count and watch what the application receives.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from starlette.exceptions import HTTPException

from polyloom.serve.web import problems

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UNLOGGED = ("/livez", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready")  # asked every few seconds
DISCARDED = 16  # times the largest body that is read and thrown away
log_entry: ContextVar[dict[str, Any]] = ContextVar("log_entry")  # what the log says about the request


def with_status(send: Send, note: Callable[[int], None]) -> Send:
    """Return a `send` that also notes the status of the response, which its first event has."""

    async def send_and_note(event: Event) -> None:
        if event["type"] == "http.response.start":
            note(event["status"])
        await send(event)

    return send_and_note


class BodyLimit:
    """Refuse bodies that are too large, before they are read into memory."""

    def __init__(self, app: App, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes
        self.detail = f"The body has more than {max_bytes:,} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a body by its header; count the bytes of one without, while it is read."""
        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_bytes:
            # Many clients look for an answer only after they have sent all, so much of the body is read, and dropped.
            left, more = DISCARDED * self.max_bytes, True
            while more and left > 0:
                event = await receive()
                left, more = left - len(event.get("body", b"")), event.get("more_body", False)
            refusal = problems.make_response(scope["path"], status=413, title="Body too large", detail=self.detail)
            await refusal(scope, receive, send)
            return
        size = 0

        async def counted() -> Event:
            nonlocal size
            event = await receive()
            size += len(event.get("body", b""))
            if size > self.max_bytes:
                raise HTTPException(413, self.detail)
            return event

        await self.app(scope, counted, send)


class CancelOnDisconnect:
    """Cancel the work for a request when its client disconnects: nothing else would, and its rows would be predicted.

    The cancellation reaches `ModelProcess.ask`, which withdraws the rows from the process with the models.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch the connection while the application works."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        was_read = asyncio.Event()  # before that, the application itself receives

        async def watched() -> Event:
            event = await receive()
            if not event.get("more_body", False):
                was_read.set()
            return event

        async def watch() -> None:
            await was_read.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            work.cancel()

        work = asyncio.ensure_future(self.app(scope, watched, send))
        watcher = asyncio.create_task(watch())
        try:
            await work
        except asyncio.CancelledError:
            if not work.cancelled():  # it was this task that was cancelled: the server shuts down
                work.cancel()
                raise
        finally:
            watcher.cancel()


class Log:
    """Write a line of JSON to stderr for every request, without its texts."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure the request, and note its status."""
        if scope["type"] != "http" or scope["path"] in UNLOGGED:
            await self.app(scope, receive, send)
            return
        about: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "status": None}
        log_entry.set(about)
        start = time.perf_counter()
        try:
            await self.app(scope, receive, with_status(send, lambda status: about.update(status=status)))
        finally:
            about["seconds"] = round(time.perf_counter() - start, 6)
            now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            sys.stderr.write(json.dumps({"time": f"{now}Z"} | about, ensure_ascii=False) + "\n")
