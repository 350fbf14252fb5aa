"""What all routes share: the models, the API keys, the limits and the metrics, and how rows are asked.

Everything here runs in the event loop of the HTTP process, so plain counters need no lock.
"""

import asyncio
import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import prometheus_client as prometheus
from fastapi import Depends, Request, Response
from pydantic import with_config

from polyloom.config.recipe import STRICT
from polyloom.errors import ConfigError, OverloadedError, PolyloomError, TooLongError
from polyloom.ranges import Count
from polyloom.serve.engine import Limits
from polyloom.serve.model_process import Message
from polyloom.serve.supervisor import Supervisor
from polyloom.serve.web.middleware import log_entry

if TYPE_CHECKING:
    from polyloom.serve.web.tracing import Tracing

ANSWERED_BY = ("Model", "Version", "Weights")  # headers: Polyloom-Model and so on
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class ServerLimits(Limits):
    """Limits of a server: those of its engine, and those of requests."""

    max_body_bytes: Count = 4 << 20
    """Bytes of a request's body."""
    max_rows: Count = 256
    """Rows of a request."""
    max_characters: Count = 50_000
    """Characters of a row."""
    max_rows_per_key: Count = 1024
    """Rows of one API key that may wait or run at a time."""


class KeyRefusedError(PolyloomError):
    """A request has no valid key."""

    status = 401


@dataclass(frozen=True)
class Key:
    """An API key: its name in logs and for fairness, and whether it may administer the server."""

    name: str
    admin: bool = False


class Keys:
    """The API keys of a server; without any, all callers are the same anonymous one.

    Args:
        path: A file with a line ``SHA256 NAME`` or ``SHA256 NAME admin`` for each key. Default: none.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._keys: list[tuple[str, Key]] = []
        if path is None:
            return
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            digest, *rest = line.split() or ["#"]
            if digest.startswith("#"):
                continue
            if len(digest) != 64 or len(rest) not in (1, 2) or rest[1:] not in ([], ["admin"]):
                raise ConfigError(
                    str(path), [f"line {number}: expected the SHA-256 of a key, its name, and maybe admin."]
                )
            self._keys.append((digest.lower(), Key(rest[0], admin=len(rest) == 2)))
        if not self._keys:
            raise ConfigError(str(path), ["no keys, so nobody could use the server."])

    def find(self, secret: str | None) -> Key:
        """Return the key with a secret.

        Raises:
            KeyRefusedError: There is none.
        """
        if not self._keys:
            return Key("anonymous")
        digest = hashlib.sha256((secret or "").encode(errors="surrogatepass")).hexdigest()
        matches = None
        for known, key in self._keys:  # all of them, so that the time does not tell which one it was
            if hmac.compare_digest(known, digest):
                matches = key
        if matches is None:
            raise KeyRefusedError("a valid API key is needed: Authorization: Bearer KEY.")
        return matches


class Metrics:
    """Numbers for Prometheus. No label has a condition as its value: there may be 200,000 of them."""

    def __init__(self) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.running = self._gauge("num_requests_running", "Waiting and running rows.")
        self.rows = prometheus.Counter("polyloom_requests", "Rows, by outcome.", ["outcome"], registry=self.registry)
        self.latency = self._histogram("e2e_request_latency_seconds", "Seconds from arrival to answer.")
        self.queue_time = self._histogram("request_queue_time_seconds", "Seconds in the queue.")
        self.batch_time = self._histogram("request_inference_time_seconds", "Seconds in a batch.")
        self._counts = {  # under their names in `Supervisor.counts`
            "waiting": self._gauge("num_requests_waiting", "Rows that wait for a batch."),
            "in_flight": self._gauge("num_translations_in_flight", "Translations that are being generated."),
            "resident": self._gauge("conditions_resident", "Conditions with weights in the cache."),
            "generated": self._gauge("conditions_generated", "Conditions with weights generated since the start."),
            "batches": self._gauge("batches", "Deliveries of answers since the start."),
            "starts": self._gauge("model_process_starts", "Starts of the process with the models."),
        }

    def _gauge(self, name: str, what: str) -> prometheus.Gauge:
        return prometheus.Gauge(f"polyloom_{name}", what, registry=self.registry)

    def _histogram(self, name: str, what: str) -> prometheus.Histogram:
        return prometheus.Histogram(f"polyloom_{name}", what, buckets=SECONDS, registry=self.registry)

    def page(self, counts: Mapping[str, int]) -> bytes:
        """Return all numbers in the format of Prometheus."""
        for name, gauge in self._counts.items():
            if name in counts:
                gauge.set(counts[name])
        return prometheus.generate_latest(self.registry)


@dataclass
class Context:
    """What all routes share."""

    models: Supervisor
    keys: Keys
    limits: ServerLimits
    allow_origin: Sequence[str] = ()
    """Origins of pages that may use the server from a browser (CORS)."""
    log_texts: bool = False
    """Whether the log has the texts of requests."""
    replicated: bool = False
    """Whether other servers answer at the same address."""
    tracing: "Tracing | None" = None
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    """Whether the server is shutting down."""
    _running: Counter[str] = field(default_factory=Counter)  # rows that wait or run, by the name of the key

    def find_key(self, secret: str | None) -> Key:
        """Return the key with a secret, and note its name for the log."""
        key = self.keys.find(secret)
        log_entry.get({})["key"] = key.name
        return key

    def check_rows(self, rows: Sequence[tuple[str, Any]]) -> None:
        """Raise an error if a request has too many rows, and note them for the log."""
        entry = log_entry.get({})
        entry["rows"] = len(rows)
        if self.log_texts:
            entry["inputs"] = rows
        if len(rows) > self.limits.max_rows:
            raise TooLongError(f"{len(rows):,} rows. At most {self.limits.max_rows:,} are allowed in a request.")

    async def answer(self, condition: str, value: Any, key: Key, *, timeout: float | None = None) -> Message:
        """Ask for one row, and count it."""
        characters = len(value) if isinstance(value, str) else sum(map(len, value))
        if characters > self.limits.max_characters:
            allowed = self.limits.max_characters
            raise TooLongError(f"{condition}: {characters:,} characters. At most {allowed:,} are allowed.")
        running = self._running[key.name]
        if running >= self.limits.max_rows_per_key:
            raise OverloadedError(f"{running:,} rows of this key are waiting already. Try again later.")

        self._running[key.name] += 1
        self.metrics.running.inc()
        start, outcome = time.perf_counter(), "cancelled"  # which it stays if the client disconnects
        try:
            answer = await self.models.answer(condition, value, caller=key.name, timeout=timeout)
            outcome = "answered"
        except PolyloomError as error:
            outcome = type(error).__name__
            raise
        finally:
            self._running[key.name] -= 1
            self.metrics.running.dec()
            self.metrics.rows.labels(outcome).inc()

        seconds = time.perf_counter() - start
        self.metrics.latency.observe(seconds)
        self.metrics.queue_time.observe(answer["waited"])
        self.metrics.batch_time.observe(answer["computed"])
        if self.tracing:
            self.tracing.answered(answer, seconds)
        return answer

    async def answers(self, condition: str, values: Sequence[Any], key: Key, response: Response) -> list[Message]:
        """Ask for rows of one condition; if one fails, all do. Headers of the response say what made the answers."""
        self.check_rows([(condition, value) for value in values])
        tasks = [asyncio.ensure_future(self.answer(condition, value, key)) for value in values]
        try:
            answers = await asyncio.gather(*tasks)
        except BaseException:  # `gather` lets the others run on when one fails
            for task in tasks:
                task.cancel()
            raise
        if answers:
            response.headers.update({f"Polyloom-{part}": answers[0][part.lower()] for part in ANSWERED_BY})
        return answers


def bearer(header: str | None) -> str | None:
    """Return the key of an ``Authorization`` header."""
    kind, _, secret = (header or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


def context_of(request: Request) -> Context:
    """Return what all routes share."""
    context: Context = request.app.state.context
    return context


def key_of(request: Request) -> Key:
    """Return the key in the header of a request."""
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
