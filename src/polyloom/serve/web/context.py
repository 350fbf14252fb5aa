"""What all routes share: the models, the keys, the limits, and how rows are asked."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request, Response

from polyloom.errors import OverloadedError, TooLongError
from polyloom.ranges import Count
from polyloom.serve.model_process import Message
from polyloom.serve.supervisor import Supervisor
from polyloom.serve.web.keys import Key, KeyRefusedError, Keys, bearer
from polyloom.serve.web.metrics import Metrics
from polyloom.serve.web.middleware import log_entry

if TYPE_CHECKING:
    from polyloom.serve.web.tracing import Tracing

ANSWERED_BY = ("Model", "Version", "Weights")  # headers: Polyloom-Model and so on


@dataclass(frozen=True, kw_only=True)
class WebLimits:
    """Limits of the server, beside those of the engine.

    Attributes:
        max_body_bytes: Size of a request's body.
        max_rows: Rows of a request.
        max_characters: Characters of a row.
        max_rows_per_key: Rows of one key that may wait or run at a time.
    """

    max_body_bytes: Count = 4 << 20
    max_rows: Count = 256
    max_characters: Count = 50_000
    max_rows_per_key: Count = 1024


@dataclass
class Context:
    """What all routes share.

    Attributes:
        models: The process with the models.
        keys: The API keys.
        limits: Limits.
        log_texts: Whether the log has the texts of requests.
        replicated: Whether other servers answer at the same address.
        tracing: Spans for OpenTelemetry. Default: none.
        metrics: Numbers for Prometheus.
        draining: Whether the server is being stopped.
    """

    models: Supervisor
    keys: Keys
    limits: WebLimits
    log_texts: bool = False
    replicated: bool = False
    tracing: "Tracing | None" = None
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    _running: dict[str, int] = field(default_factory=dict)

    def find_key(self, secret: str | None) -> Key:
        """Return the key that a caller has shown, and note its name for the log."""
        key = self.keys.find(secret)
        log_entry.get({})["key"] = key.name
        return key

    async def answer(self, condition: str, value: Any, key: Key, *, timeout: float | None = None) -> Message:
        """Ask for one row, and count it."""
        self._check_characters(condition, value)
        running = self._running.get(key.name, 0)
        if running >= self.limits.max_rows_per_key:
            raise OverloadedError(f"{running:,} rows of this key are waiting already. Try again later.")
        self._running[key.name] = running + 1
        start = time.perf_counter()
        try:
            with self.metrics.asking():
                answer = await self.models.answer(condition, value, caller=key.name, timeout=timeout)
        finally:
            self._running[key.name] -= 1
            if not self._running[key.name]:
                del self._running[key.name]
        seconds = time.perf_counter() - start
        self.metrics.answered(answer, seconds)
        if self.tracing:
            self.tracing.answered(answer, seconds)
        return answer

    async def answers(self, condition: str, values: Sequence[Any], key: Key, response: Response) -> list[Message]:
        """Ask for rows of one condition; if one fails, all do. Headers of the response say what made the answers."""
        self.check_rows([(condition, value) for value in values])
        tasks = [asyncio.ensure_future(self.answer(condition, value, key)) for value in values]
        try:
            found = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        if found:
            response.headers.update({f"Polyloom-{part}": found[0][part.lower()] for part in ANSWERED_BY})
        return found

    def check_rows(self, rows: Sequence[tuple[str, Any]]) -> None:
        """Raise an error if a request has too many rows, and note them for the log."""
        entry = log_entry.get({})
        entry["rows"] = len(rows)
        if self.log_texts:
            entry["asked"] = rows
        if len(rows) > self.limits.max_rows:
            raise TooLongError(f"{len(rows):,} rows. At most {self.limits.max_rows:,} are allowed in a request.")

    def _check_characters(self, condition: str, value: Any) -> None:
        count = len(value) if isinstance(value, str) else sum(map(len, value))
        if count > self.limits.max_characters:
            most = self.limits.max_characters
            raise TooLongError(f"{condition}: {count:,} characters. At most {most:,} are allowed.")


def context_of(request: Request) -> Context:
    """Return what all routes share."""
    found: Context = request.app.state.context
    return found


def key_of(request: Request) -> Key:
    """Return the key that a request shows in its header."""
    return context_of(request).find_key(bearer(request.headers.get("authorization")))


def admin_of(request: Request) -> Key:
    """Return the key of a request that administers the server."""
    key = key_of(request)
    if not key.admin:
        raise KeyRefusedError("this needs an API key with the word admin behind its name.")
    return key


Shared = Annotated[Context, Depends(context_of)]
Caller = Annotated[Key, Depends(key_of)]
Admin = Annotated[Key, Depends(admin_of)]
