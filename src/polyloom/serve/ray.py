"""Serve on many machines: every replica of a Ray Serve deployment is the same server as on one machine.

``serve deploy deploy/ray.yaml`` takes `app` with the settings of the file; ``polyloom serve --ray`` takes `run_on_ray`.
A replica can generate the weights of any condition, so any of them can take a request.
"""

import contextlib
import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

from polyloom.config.parse import parse_settings
from polyloom.errors import PolyloomError, UnavailableError
from polyloom.io.access import allow_paths, allowed_paths
from polyloom.registry import load_code, loaded_code
from polyloom.serve.web.server import DRAIN, ServerSettings, build_app

NAME = "polyloom"  # of the application and of its deployment


@serve.ingress()
class Replica:
    """A server: the routes in this process, the models in one of their own, which is started again if it dies."""

    async def __init__(self, settings: ServerSettings) -> None:  # type: ignore[misc]  # Ray waits for it
        allow_paths(settings.allow_path)
        for file in settings.code:
            load_code(file)
        self._context = settings.context(replicated=True)
        self._loaded: Any = None  # the user_config of the loaded runs
        await self._context.models.__aenter__()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Build the routes; Ray calls it."""
        return build_app(self._context)

    async def reconfigure(self, user_config: Any) -> None:
        """Load the runs again if ``user_config`` has changed; Ray calls it, first when a replica starts."""
        if self._loaded not in (None, user_config):
            await self._context.models.reload()
        self._loaded = user_config

    async def check_health(self) -> None:
        """Raise an error if the process with the models is gone, or time out if it hangs; Ray calls it."""
        if not self._context.models.is_alive:
            raise UnavailableError("the process with the models died.")
        with contextlib.suppress(UnavailableError):  # it is being started
            await self._context.models.counts()

    async def __del__(self) -> None:
        """Stop the process with the models; Ray calls it once all requests are answered."""
        await self._context.models.__aexit__()


def app(args: Mapping[str, Any]) -> serve.Application:
    """Build the application from the ``args`` of a file for ``serve deploy``: see `ServerSettings`."""
    return build_application(parse_settings(ServerSettings, args, source="args"))


def build_application(settings: ServerSettings, *, replicas: int = 1) -> serve.Application:
    """Build the application."""
    deploy = serve.deployment(
        name=NAME, num_replicas=replicas, graceful_shutdown_timeout_s=DRAIN,
        max_ongoing_requests=settings.limits.max_waiting,  # of a replica: its engine makes the batches
        user_config={"version": 1},
    )  # fmt: skip
    return deploy(Replica).bind(settings)


def run_on_ray(settings: ServerSettings, *, host: str, port: int, replicas: int) -> None:
    """Serve on the running cluster until SIGTERM or SIGINT.

    Raises:
        PolyloomError: There is no cluster.
    """
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise PolyloomError("serve: no Ray cluster runs here. Start one: ray start --head") from error
    settings = replace(settings, allow_path=allowed_paths(), code=loaded_code())
    serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    serve.run(build_application(settings, replicas=replicas), name=NAME, route_prefix="/")
    sys.stderr.write(f"Serving {replicas} replicas at http://{host}:{port}\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends `pause` as Ctrl-C does
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    serve.delete(NAME)
