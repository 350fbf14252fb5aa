"""Our own protocol: rows of any conditions in one body, each with its own answer or error."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from polyloom.errors import PolyloomError
from polyloom.serve.web.context import Caller, Shared
from polyloom.serve.web.problems import describe

router = APIRouter(prefix="/v1", tags=["polyloom"])
NDJSON = "application/x-ndjson"


class Row(BaseModel):
    """One input with its condition."""

    condition: str = Field(max_length=200, examples=["pos/tr"], description="task/language or task/source/target")
    input: str | list[str] = Field(
        examples=["Kedi uyuyor."],
        description="A text; or as a list: the words of a sentence, premise and hypothesis, question and context, or "
        "premise, question and choices.",
    )


class PredictRequest(BaseModel):
    """Rows of any conditions."""

    rows: list[Row] = Field(min_length=1)
    timeout: float | None = Field(
        default=None, gt=0, le=3600, description="Seconds until a row is given up. Default: that of the server."
    )


@router.post("/predict", summary="Predict rows of any tasks and languages", response_model=dict[str, Any])
async def predict(body: PredictRequest, shared: Shared, key: Caller, accept: Annotated[str, Header()] = "") -> Response:
    """Answer rows in order; with ``Accept: application/x-ndjson`` each as soon as it is ready, with its index."""

    async def answer(index: int, row: Row) -> dict[str, Any]:
        try:
            return {"index": index, **await shared.answer(row.condition, row.input, key, timeout=body.timeout)}
        except PolyloomError as error:
            return {"index": index, "condition": row.condition, "error": describe(error)}

    # All rows wait in the model's queue at once, so that they share batches. Whatever ends this request early, such as
    # a client that disconnects, cancels those that still wait.
    shared.check_rows([(row.condition, row.input) for row in body.rows])
    tasks = [asyncio.create_task(answer(index, row)) for index, row in enumerate(body.rows)]

    async def lines() -> AsyncIterator[bytes]:
        try:
            for done in asyncio.as_completed(tasks):
                yield _json(await done) + b"\n"
        finally:
            _cancel(tasks)

    if NDJSON in accept:
        return StreamingResponse(lines(), media_type=NDJSON)
    try:
        results = [await task for task in tasks]
    finally:
        _cancel(tasks)
    return Response(_json({"results": results}), media_type="application/json")


def _cancel(tasks: list["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@router.get("/models", summary="List conditions, as OpenAI lists models")
async def models(
    shared: Shared, _: Caller, limit: Annotated[int, Query(ge=1, description="Conditions in the list, at most.")] = 1000
) -> dict[str, Any]:
    """List the conditions that can be predicted: every task in every language."""
    listed = [
        {"id": f"{task}/{languages}", "object": "model", "owned_by": "polyloom", "root": model["version"]}
        for model in shared.models.info()["models"]
        for task, about in model["tasks"].items()
        for languages in (model["directions"] if about["bilingual"] else model["languages"])
    ]
    return {"object": "list", "data": listed[:limit], "total": len(listed)}


@router.get("/adapters/{condition:path}", summary="Write an adapter as files for vLLM")
async def adapter(condition: str, shared: Shared, _: Caller) -> dict[str, Any]:
    """Return the folder with the LoRA of a condition in PEFT's format; it is generated if it is not there."""
    return await shared.models.adapter(condition)
