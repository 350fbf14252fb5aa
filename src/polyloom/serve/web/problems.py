"""Errors as RFC 9457 problem JSON, with the messages of the command line; other protocols have their own form."""

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from polyloom.errors import PolyloomError

TITLES = {
    400: "Invalid body", 401: "Unauthorized", 404: "Unknown condition", 413: "Input too long", 422: "Invalid input",
    429: "Overloaded", 500: "Not predicted", 503: "Unavailable", 504: "Timed out",
}  # fmt: skip
RETRY_AFTER = 1  # seconds
MEDIA_TYPE = "application/problem+json"
OTHER_PROTOCOLS = ("/models/", "/translate", "/languages", "/v2")


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class OtherError(BaseModel):
    """An error as clients of Hugging Face, LibreTranslate and Triton read it."""

    error: str


# What the OpenAPI description says about errors.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}, "description": title}
    for status, title in TITLES.items()
}
OTHER_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"content": {"application/json": {"schema": OtherError.model_json_schema()}}, "description": title}
    for status, title in TITLES.items()
}


def describe(error: PolyloomError) -> dict[str, Any]:
    """Describe an error as a problem."""
    return Problem(title=TITLES[error.status], status=error.status, detail=str(error)).model_dump()


def make_response(path: str, *, status: int, title: str, detail: str) -> JSONResponse:
    """Make the response to a request of a path that failed."""
    headers = {"Retry-After": str(RETRY_AFTER)} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if path.startswith(OTHER_PROTOCOLS):
        return JSONResponse(OtherError(error=detail).model_dump(), status, headers)
    problem = Problem(title=title, status=status, detail=detail)
    return JSONResponse(problem.model_dump(), status, headers, media_type=MEDIA_TYPE)


async def on_error(request: Request, error: Exception) -> JSONResponse:
    """Respond to an error of ours, a body of another form, or an unknown path or method."""
    path = request.scope["path"]
    if isinstance(error, PolyloomError):
        return make_response(path, status=error.status, title=TITLES[error.status], detail=str(error))
    if isinstance(error, RequestValidationError):
        mistakes = [f"{'.'.join(map(str, m['loc'][1:])) or 'body'}: {m['msg']}" for m in error.errors()]
        return make_response(path, status=422, title="Invalid request", detail="; ".join(mistakes))
    assert isinstance(error, HTTPException)
    return make_response(path, status=error.status_code, title=error.detail, detail=error.detail)
