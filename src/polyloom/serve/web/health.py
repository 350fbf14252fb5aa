"""Health, metrics and settings of a server."""

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from polyloom.errors import PolyloomError, UnavailableError
from polyloom.serve.web.context import Admin, Caller, Context, Shared
from polyloom.version import versions

router = APIRouter(tags=["health"])
CANARY = 5.0  # seconds in which a server that is ready predicts a small input
FULL = 0.9  # share of the queue above which a server is not ready


@router.get("/livez", summary="Whether the server is alive")
async def livez(shared: Shared) -> dict[str, str]:
    """Say that the process with the models runs or is starting. A full queue is no reason to restart a server."""
    if not shared.models.is_alive:
        raise UnavailableError("the process with the models died.")
    return {"status": "alive"}


@router.get("/readyz", summary="Whether the server can answer")
async def readyz(shared: Shared) -> dict[str, str]:
    """Say that a row was predicted, that the queue has room, and that the server is not shutting down."""
    await require_ready(shared)
    return {"status": "ready"}


async def require_ready(shared: Context) -> None:
    """Raise an error unless the server can answer."""
    if shared.draining:
        raise UnavailableError("the server is shutting down.")
    try:
        async with asyncio.timeout(CANARY):
            waiting = (await shared.models.counts())["waiting"]
            if waiting > FULL * shared.limits.max_waiting:
                raise UnavailableError(f"{waiting:,} rows are waiting.")
            await shared.models.canary()
    except TimeoutError:
        raise UnavailableError(f"no prediction within {CANARY:g} seconds.") from None
    except PolyloomError as error:
        raise UnavailableError(str(error)) from error


@router.get("/metrics", summary="Metrics for Prometheus", include_in_schema=False)
async def metrics(shared: Shared) -> Response:
    """Return all metrics. While the process with the models restarts, its own keep their last values."""
    try:
        counts = await shared.models.counts()
    except UnavailableError:
        counts = {"starts": shared.models.starts}
    return Response(shared.metrics.page(counts), media_type="text/plain; version=0.0.4")


@router.get("/info", summary="What is served, and all limits")
async def info(shared: Shared, _: Caller) -> dict[str, Any]:
    """Describe the models, the limits and the versions."""
    return shared.models.info() | {"limits": asdict(shared.limits), "versions": versions()}


@router.post("/v1/reload", summary="Load the runs again")
async def reload(shared: Shared, _: Admin) -> dict[str, Any]:
    """Load all runs again in a second process, which then replaces the first. No request is lost."""
    if shared.replicated:
        raise PolyloomError("this is one of several replicas. Change user_config in Ray's file and deploy it again.")
    return {"models": (await shared.models.reload())["models"]}
