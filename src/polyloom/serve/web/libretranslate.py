"""The protocol of LibreTranslate: ``/translate`` and ``/languages``, as forms or JSON."""

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from polyloom.errors import PolyloomError
from polyloom.serve.web.context import Shared, bearer
from polyloom.serve.web.problems import OTHER_RESPONSES

router = APIRouter(tags=["LibreTranslate"], responses=OTHER_RESPONSES)


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
    # FastAPI reads a body either as a form or as JSON; this protocol has both.
    fields: Any
    if request.headers.get("content-type", "").startswith("application/json"):
        try:
            fields = await request.json()
        except ValueError:
            raise PolyloomError("the body is not JSON.") from None
        if not isinstance(fields, dict):
            raise PolyloomError("the body must be a JSON object.")
    else:
        form = await request.form()
        fields = {name: form.getlist(name) if len(form.getlist(name)) > 1 else value for name, value in form.items()}

    key = shared.find_key(fields.get("api_key") or bearer(request.headers.get("authorization")))
    source, target, texts = fields.get("source"), fields.get("target"), fields.get("q")
    if not isinstance(source, str) or not isinstance(target, str) or source == "auto":
        raise PolyloomError("source and target must be codes of languages; the source is not detected.")
    several = texts if isinstance(texts, list) else [texts]
    if not all(isinstance(text, str) for text in several):
        raise PolyloomError("q must be a text or a list of texts.")

    translating = _translating(shared.models.info()["models"])
    if not translating:
        raise PolyloomError("no model that is served here translates.")
    answers = await shared.answers(f"{translating[0][1]}/{source}/{target}", several, key, response)
    translations = [answer["prediction"]["text"] for answer in answers]
    return {"translatedText": translations if isinstance(texts, list) else translations[0]}


@router.get("/languages", summary="List languages as LibreTranslate does")
async def languages(shared: Shared) -> list[dict[str, Any]]:
    """List the source languages, each with its target languages."""
    targets: dict[str, set[str]] = {}
    for model, _ in _translating(shared.models.info()["models"]):
        for direction in model["directions"]:
            source, _, target = direction.partition("/")
            targets.setdefault(source, set()).add(target)
    return [{"code": source, "name": source, "targets": sorted(into)} for source, into in sorted(targets.items())]


def _translating(models: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Return the models that translate, each with the name of its task."""
    return [(model, name) for model in models for name, about in model["tasks"].items() if about["bilingual"]]
