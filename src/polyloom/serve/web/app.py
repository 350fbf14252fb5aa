"""The FastAPI application: all routes around one process with the models."""

from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from polyloom.errors import PolyloomError
from polyloom.serve.web import health, hugging_face, libretranslate, native, open_inference, page, problems
from polyloom.serve.web.context import Context
from polyloom.serve.web.middleware import BodyLimit, HangUp, Log
from polyloom.version import versions


def build_app(context: Context, *, origins: Sequence[str] = ()) -> FastAPI:
    """Build the application.

    Args:
        context: The models, the keys and the limits.
        origins: Origins of pages that may use the server from a browser (CORS).
    """
    app = FastAPI(
        title="Polyloom", version=versions()["polyloom"], redoc_url=None,
        strict_content_type=False,  # Triton's client sends none
        description="Predictions of many tasks and languages from one backbone.", responses=problems.RESPONSES,
    )  # fmt: skip
    app.state.context = context
    for module in (native, hugging_face, libretranslate, open_inference, health, page):
        app.include_router(module.router)
    app.add_exception_handler(PolyloomError, problems.on_error)
    app.add_exception_handler(RequestValidationError, problems.on_invalid)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    app.add_middleware(BodyLimit, most=context.limits.max_body_bytes)
    app.add_middleware(HangUp)
    app.add_middleware(Log)
    if context.tracing:
        from polyloom.serve.web.tracing import TraceRequests  # noqa: PLC0415 - an extra

        app.add_middleware(TraceRequests, tracing=context.tracing)
    return app
