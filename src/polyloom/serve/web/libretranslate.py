"""The protocol of LibreTranslate: ``/translate`` and ``/languages``, as forms or JSON."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from polyloom.errors import PolyloomError
from polyloom.serve.web.context import Context, Shared
from polyloom.serve.web.keys import bearer

router = APIRouter(tags=["LibreTranslate"])


class TranslateRequest(BaseModel):
    """What LibreTranslate's clients send, as a form or as JSON."""

    q: str | list[str] = Field(description="A text, or a list of texts.")
    source: str
    target: str
    api_key: str | None = None


_SCHEMA = {"schema": TranslateRequest.model_json_schema()}
_BODY = {"requestBody": {"content": dict.fromkeys(("application/json", "multipart/form-data"), _SCHEMA)}}


@router.post("/translate", summary="Translate as LibreTranslate does", openapi_extra=_BODY)
async def translate(request: Request, shared: Shared, response: Response) -> dict[str, Any]:
    """Translate ``q``, a text or a list of texts, from ``source`` into ``target``."""
    given = await _fields(request)
    key = shared.find_key(given.get("api_key") or bearer(request.headers.get("authorization")))
    source, target, texts = given.get("source"), given.get("target"), given.get("q")
    if not isinstance(source, str) or not isinstance(target, str) or source == "auto":
        raise PolyloomError("source and target must be codes of languages; source cannot be found automatically.")
    several = texts if isinstance(texts, list) else [texts]
    if not all(isinstance(text, str) for text in several):
        raise PolyloomError("q must be a text or a list of texts.")
    answers = await shared.answers(f"{_task(shared)}/{source}/{target}", several, key, response)
    found = [answer["prediction"]["text"] for answer in answers]
    return {"translatedText": found if isinstance(texts, list) else found[0]}


async def _fields(request: Request) -> dict[str, Any]:
    """Read the body, a form or JSON."""
    if request.headers.get("content-type", "").startswith("application/json"):
        try:
            body = await request.json()
        except ValueError:
            raise PolyloomError("the body is not JSON.") from None
        if not isinstance(body, dict):
            raise PolyloomError("the body must be a JSON object.")
        return body
    form = await request.form()
    return {name: form.getlist(name) if len(form.getlist(name)) > 1 else value for name, value in form.items()}


@router.get("/languages", summary="List languages as LibreTranslate does")
async def languages(shared: Shared) -> list[dict[str, Any]]:
    """List the languages that can be translated, each with its targets."""
    targets: dict[str, set[str]] = {}
    for model, _ in _translators(shared):
        for direction in model["directions"]:
            source, _, target = direction.partition("/")
            targets.setdefault(source, set()).add(target)
    return [{"code": source, "name": source, "targets": sorted(into)} for source, into in sorted(targets.items())]


def _task(shared: Context) -> str:
    """Return the name of the task that translates."""
    found = next(_translators(shared), None)
    if found is None:
        raise PolyloomError("no model that is served here translates.")
    return found[1]


def _translators(shared: Context) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the models that translate, each with the name of its task."""
    for model in shared.models.info()["models"]:
        for name, about in model["tasks"].items():
            if about["bilingual"]:
                yield model, name
