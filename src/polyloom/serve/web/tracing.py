"""Traces for OpenTelemetry: a span for each request, and in it one for each row."""

import time

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from polyloom.serve.model_process import Message
from polyloom.serve.web.middleware import UNLOGGED, App, Receive, Scope, Send, with_status
from polyloom.version import versions


class Tracing:
    """Spans for a collector. They contain no texts.

    Args:
        endpoint: Address of the collector, such as ``http://localhost:4318/v1/traces``.
    """

    def __init__(self, endpoint: str) -> None:
        about = Resource.create({"service.name": "polyloom", "service.version": versions()["polyloom"]})
        self.provider = TracerProvider(resource=about)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self.tracer = self.provider.get_tracer("polyloom")

    def answered(self, answer: Message, seconds: float) -> None:
        """Add the span of a row that was just answered, within that of its request."""
        end = time.time_ns()
        about = {key: answer[key] for key in ("condition", "model", "version", "cached", "waited", "computed")}
        attributes = {f"polyloom.{key}": value for key, value in about.items() if value is not None}
        span = self.tracer.start_span("row", start_time=end - int(seconds * 1e9), attributes=attributes)
        span.end(end)

    def stop(self) -> None:
        """Send the remaining spans."""
        self.provider.shutdown()


class TraceRequests:
    """Make a span of every request, within the caller's span if a header names it (W3C trace context)."""

    def __init__(self, app: App, tracing: Tracing) -> None:
        self.app, self.tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measure the request, and note its status."""
        if scope["type"] != "http" or scope["path"] in UNLOGGED:
            await self.app(scope, receive, send)
            return
        caller = propagate.extract(
            {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        )
        name, kind = f"{scope['method']} {scope['path']}", trace.SpanKind.SERVER
        with self.tracing.tracer.start_as_current_span(name, context=caller, kind=kind) as span:
            attribute = "http.response.status_code"  # of OpenTelemetry's conventions for HTTP
            await self.app(scope, receive, with_status(send, lambda status: span.set_attribute(attribute, status)))
