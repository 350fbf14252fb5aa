"""The web UI: a few static files, whose script asks the other routes."""

import hashlib
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter(include_in_schema=False)
FILES = {path.name: path.read_bytes() for path in Path(__file__).with_name("static").iterdir() if path.is_file()}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a browser may keep a file, but asks each time whether it has changed
}


@router.get("/")
async def page(if_none_match: Annotated[str, Header()] = "") -> Response:
    """Return the web UI."""
    return make_file("index.html", if_none_match)


@router.get("/static/{name}")
async def static(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
    """Return one of its files."""
    if name not in FILES:
        raise HTTPException(404)
    return make_file(name, if_none_match)


def make_file(name: str, known: str) -> Response:
    """Make a response of a file, without its content if the browser has it already."""
    # `If-None-Match` may hold several tags, or a weak one (W/"…"); whether ours is among them is all that counts.
    tag = f'"{hashlib.sha256(FILES[name]).hexdigest()[:16]}"'
    headers = HEADERS | {"ETag": tag}
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(FILES[name], headers=headers, media_type=TYPES[Path(name).suffix])
