"""What happens to every request, whatever its route: its size is limited, it ends with its caller, it is logged."""

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
DISCARDED = 16  # times the largest body is read and thrown away
log_entry: ContextVar[dict[str, Any]] = ContextVar("log_entry")  # what the log says about the request


class BodyLimit:
    """Refuse bodies that are too large, before they are read into memory."""

    def __init__(self, app: App, most: int) -> None:
        self.app, self.most = app, most
        self.detail = f"The body has more than {most:,} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at the header, and count the bytes of the body while it is read."""
        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.most:
            await self._discard(receive)
            await problems.make_response(problems.problem(413, "Body too large", self.detail))(scope, receive, send)
            return
        size = 0

        async def counted() -> Event:
            nonlocal size
            event = await receive()
            size += len(event.get("body", b""))
            if size > self.most:
                raise HTTPException(413, self.detail)
            return event

        await self.app(scope, counted, send)

    async def _discard(self, receive: Receive) -> None:
        """Read a body that is not used, up to a size; many clients look for an answer only when they have sent all."""
        left = DISCARDED * self.most
        while left > 0:
            event = await receive()
            left -= len(event.get("body", b""))
            if not event.get("more_body", False):
                return


class HangUp:
    """Cancel a request whose caller has gone."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch the connection once the body was read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        was_read = asyncio.Event()

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
            if not work.cancelled():  # the server itself is being stopped
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

        async def noted(event: Event) -> None:
            if event["type"] == "http.response.start":
                about["status"] = event["status"]
            await send(event)

        try:
            await self.app(scope, receive, noted)
        finally:
            about["seconds"] = round(time.perf_counter() - start, 6)
            now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            sys.stderr.write(json.dumps({"time": f"{now}Z"} | about, ensure_ascii=False) + "\n")
