"""Run the application with uvicorn."""

import asyncio
import contextlib
import signal
import sys
from types import FrameType

import uvicorn

from polyloom.errors import PolyloomError
from polyloom.serve.web.app import build_app
from polyloom.serve.web.context import Context
from polyloom.serve.web.settings import ServerSettings

DRAIN = 25  # seconds in which accepted requests are answered after SIGTERM


class Server(uvicorn.Server):
    """A server that says when it is ready, is not ready once it was asked to stop, and reloads its runs at SIGHUP."""

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
        """Answer what was accepted, then send the last traces."""
        await super().shutdown(sockets)  # type: ignore[arg-type]
        if self.context.tracing:
            self.context.tracing.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note that the server is being stopped."""
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

        self._reloading = asyncio.create_task(work())


def run_server(settings: ServerSettings, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and end."""
    context = settings.context()
    config = uvicorn.Config(
        build_app(context, origins=settings.origins), host=host, port=port, log_level="warning", access_log=False,
        timeout_graceful_shutdown=DRAIN, server_header=False, lifespan="off",
    )  # fmt: skip

    async def serve() -> None:
        async with context.models:
            await Server(config, context).serve()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
