"""Mistakes as RFC 9457 problem JSON, with the messages of the command line."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from polyloom.errors import PolyloomError

_TITLES = {
    400: "Invalid body", 401: "Unauthorized", 404: "Unknown condition", 413: "Input too long", 422: "Invalid input",
    429: "Overloaded", 500: "Not predicted", 503: "Unavailable", 504: "Timed out",
}  # fmt: skip
RETRY_AFTER = 1  # seconds
MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """What went wrong (RFC 9457). Clients of Hugging Face, LibreTranslate and Triton read `error`."""

    type: str
    title: str
    status: int
    detail: str
    error: str


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}, "description": title}
    for status, title in _TITLES.items()
}


def problem(status: int, title: str, detail: str) -> dict[str, Any]:
    """Describe what went wrong."""
    return Problem(type="about:blank", title=title, status=status, detail=detail, error=detail).model_dump()


def describe(error: PolyloomError) -> dict[str, Any]:
    """Describe an error as a problem."""
    return problem(error.status, _TITLES[error.status], str(error))


def make_response(described: Mapping[str, Any]) -> JSONResponse:
    """Make a response of a problem."""
    status = described["status"]
    headers = {"Retry-After": str(RETRY_AFTER)} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(dict(described), status_code=status, headers=headers, media_type=MEDIA_TYPE)


async def on_error(_: Request, error: Exception) -> JSONResponse:
    """Respond to an error of ours."""
    assert isinstance(error, PolyloomError)
    return make_response(describe(error))


async def on_invalid(_: Request, error: Exception) -> JSONResponse:
    """Respond to a body that does not have the form of the request."""
    assert isinstance(error, RequestValidationError)
    mistakes = [f"{'.'.join(map(str, one['loc'][1:])) or 'body'}: {one['msg']}" for one in error.errors()]
    return make_response(problem(422, "Invalid request", "; ".join(mistakes)))


async def on_http_error(_: Request, error: Exception) -> JSONResponse:
    """Respond to an unknown path or method."""
    assert isinstance(error, HTTPException)
    return make_response(problem(error.status_code, error.detail, error.detail))
