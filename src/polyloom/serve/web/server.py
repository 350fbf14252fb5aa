"""The server on one machine: its settings, the FastAPI application around one process with models, and uvicorn."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import with_config
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from polyloom.config.recipe import STRICT
from polyloom.errors import PolyloomError
from polyloom.ranges import Count
from polyloom.serve.supervisor import Supervisor
from polyloom.serve.web import health, hugging_face, libretranslate, native, open_inference, page, problems
from polyloom.serve.web.context import Context, Keys, ServerLimits
from polyloom.serve.web.middleware import BodyLimit, CancelOnDisconnect, Log
from polyloom.version import versions

DRAIN = 25  # seconds in which accepted requests are answered after SIGTERM


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server, on one machine or on many. They are called as the options of ``polyloom serve``."""

    runs: Sequence[str]
    """Folders of runs and exported adapters."""
    limits: ServerLimits = field(default_factory=ServerLimits)
    keys: str | None = None
    """File with API keys. Default: everybody may use the server."""
    beams: Count | None = None
    """Beams of translations. Default: those of the runs."""
    threads: Count | None = None
    """Threads of torch. Default: as torch decides."""
    allow_origin: Sequence[str] = ()
    """Origins of pages that may use the server from a browser (CORS)."""
    log_texts: bool = False
    """Whether the log has the texts of requests."""
    otlp_traces_endpoint: str | None = None
    """OpenTelemetry collector that receives traces. Default: none."""
    allow_path: Sequence[str] = ()
    """Files and folders that untrusted runs may read."""
    code: Sequence[str] = ()
    """Python files that register methods, tasks or readers."""
    adapters: str | None = None
    """Folder into which adapters are written for vLLM. Default: none are written."""
    base_name: str | None = None
    """vLLM's name of the model. Default: the run's own name for it."""
    adapters_mb: Count = 1024
    """Megabytes of that folder, at most."""

    def context(self, *, replicated: bool = False) -> Context:
        """Build what all routes of a server share; `replicated` if other servers answer at the same address."""
        tracing = None
        if self.otlp_traces_endpoint is not None:
            try:
                from polyloom.serve.web.tracing import Tracing  # noqa: PLC0415 - an extra
            except ModuleNotFoundError as missing:
                raise PolyloomError(f"traces: {missing.name} is missing. pip install 'polyloom[otel]'") from missing
            tracing = Tracing(self.otlp_traces_endpoint)
        files = {"folder": self.adapters, "base_name": self.base_name, "max_mb": self.adapters_mb}
        models = Supervisor(
            self.runs, limits=self.limits, beams=self.beams, threads=self.threads,
            adapters=files if self.adapters else None,
        )  # fmt: skip
        return Context(
            models, Keys(self.keys), self.limits, allow_origin=self.allow_origin, log_texts=self.log_texts,
            replicated=replicated, tracing=tracing,
        )  # fmt: skip


def build_app(context: Context) -> FastAPI:
    """Build the application."""
    app = FastAPI(
        title="Polyloom", version=versions()["polyloom"], redoc_url=None,
        strict_content_type=False,  # Triton's client sends none
        description="Predictions of many tasks and languages from one backbone.", responses=problems.RESPONSES,
    )  # fmt: skip
    app.state.context = context
    for module in (native, hugging_face, libretranslate, open_inference, health, page):
        app.include_router(module.router)
    for kind in (PolyloomError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, problems.on_error)
    # What is added last sees a request first: traces and the log measure also what the others refuse or cancel.
    if context.allow_origin:
        app.add_middleware(
            CORSMiddleware, allow_origins=context.allow_origin, allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(BodyLimit, max_bytes=context.limits.max_body_bytes)
    app.add_middleware(CancelOnDisconnect)
    app.add_middleware(Log)
    if context.tracing:
        from polyloom.serve.web.tracing import TraceRequests  # noqa: PLC0415 - an extra

        app.add_middleware(TraceRequests, tracing=context.tracing)
    return app


class Server(uvicorn.Server):
    """A server that says when it is ready, is not ready while it shuts down, and reloads its runs at SIGHUP."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self.context = context

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Start, and say where."""
        await super().startup(sockets)  # type: ignore[arg-type]
        if not self.started:
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        names = ", ".join(model["name"] for model in self.context.models.info()["models"])
        sys.stderr.write(f"Serving {names} at http://{self.config.host}:{self.config.port}\n")

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Answer accepted requests, then send the last traces."""
        await super().shutdown(sockets)  # type: ignore[arg-type]
        if self.context.tracing:
            self.context.tracing.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note that the server is shutting down."""
        self.context.draining = True
        super().handle_exit(sig, frame)

    def _reload(self) -> None:
        async def work() -> None:
            try:
                await self.context.models.reload()
            except PolyloomError as error:
                sys.stderr.write(f"Not reloaded: {error}\n")
            else:
                sys.stderr.write("Reloaded.\n")

        self._reloading = asyncio.create_task(work())  # kept: the event loop holds tasks weakly


def run_server(settings: ServerSettings, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then answer accepted requests and end."""
    context = settings.context()
    config = uvicorn.Config(
        build_app(context), host=host, port=port, log_level="warning", access_log=False,
        timeout_graceful_shutdown=DRAIN, server_header=False, lifespan="off",
    )  # fmt: skip

    async def serve() -> None:
        async with context.models:
            await Server(config, context).serve()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
