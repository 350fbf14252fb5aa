"""Numbers for Prometheus. No label has a condition as its value: there may be 200,000 of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from polyloom.errors import PolyloomError
from polyloom.serve.model_process import Message

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = {  # of the process with the models, under their names in `Supervisor.counts`
    "waiting": ("num_requests_waiting", "Rows that wait for a batch."),
    "in_flight": ("num_translations_in_flight", "Translations that are being generated."),
    "resident": ("conditions_resident", "Conditions with weights in the cache."),
    "generated": ("conditions_generated", "Conditions whose weights were computed since the last start."),
    "batches": ("batches", "Times that answers were handed out since the last start."),
    "starts": ("model_process_starts", "Starts of the process with the models."),
}


class Metrics:
    """The numbers of a server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counts = {name: self._gauge(*about) for name, about in _COUNTS.items()}
        self._running = self._gauge("num_requests_running", "Rows that wait or run.")
        self._rows = Counter("polyloom_requests", "Rows, by their outcome.", ["outcome"], registry=self.registry)
        self._latency = self._histogram("e2e_request_latency_seconds", "From arrival to answer.")
        self._queue_time = self._histogram("request_queue_time_seconds", "In the queue.")
        self._batch_time = self._histogram("request_inference_time_seconds", "In a batch.")

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"polyloom_{name}", what, registry=self.registry)

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(f"polyloom_{name}", what, buckets=_SECONDS, registry=self.registry)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count a row while it waits and runs, and how it fails."""
        self._running.inc()
        try:
            yield
        except PolyloomError as error:
            self._rows.labels(type(error).__name__).inc()
            raise
        except BaseException:
            self._rows.labels("cancelled").inc()
            raise
        finally:
            self._running.dec()

    def answered(self, answer: Message, seconds: float) -> None:
        """Count an answer."""
        self._rows.labels("answered").inc()
        self._latency.observe(seconds)
        self._queue_time.observe(answer["waited"])
        self._batch_time.observe(answer["computed"])

    def page(self, counts: Mapping[str, int]) -> bytes:
        """Return all numbers in the format of Prometheus."""
        for name, gauge in self._counts.items():
            if name in counts:
                gauge.set(counts[name])
        return generate_latest(self.registry)
