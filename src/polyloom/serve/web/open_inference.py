"""The Open Inference Protocol (v2) of KServe and Triton, over JSON: one input of texts, one output of JSON texts."""

import json
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from polyloom.errors import PolyloomError
from polyloom.serve.web.context import Caller, Shared
from polyloom.serve.web.health import require_ready
from polyloom.serve.web.problems import OTHER_RESPONSES
from polyloom.version import versions

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], responses=OTHER_RESPONSES)
INPUT, OUTPUT = "text", "prediction"


class Tensor(BaseModel):
    """A tensor of texts."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]
    parameters: dict[str, Any] = Field(default_factory=dict)


class InferRequest(BaseModel):
    """The body of an inference request."""

    id: str = ""
    inputs: list[Tensor]
    outputs: list[dict[str, Any]] = Field(default_factory=list)
    parameters: dict[str, Any] = Field(default_factory=dict)


@router.get("", summary="Describe the server")
async def server() -> dict[str, Any]:
    """Describe the server."""
    return {"name": "polyloom", "version": versions()["polyloom"], "extensions": []}


@router.get("/health/live", summary="Whether the server is alive")
async def live() -> dict[str, bool]:
    """Say that the server is alive."""
    return {"live": True}


@router.get("/health/ready", summary="Whether the server can answer")
async def ready(shared: Shared) -> dict[str, bool]:
    """Say that the server can answer."""
    await require_ready(shared)
    return {"ready": True}


@router.get("/models/{condition:path}/ready", summary="Whether a condition can be predicted")
async def model_ready(condition: str, shared: Shared, _: Caller) -> dict[str, Any]:
    """Say that a condition can be predicted."""
    await shared.models.check(condition)
    return {"name": condition, "ready": True}


@router.get("/models/{condition:path}", summary="Describe a condition")
async def model(condition: str, shared: Shared, _: Caller) -> dict[str, Any]:
    """Describe the input and the output of a condition."""
    await shared.models.check(condition)
    return {
        "name": condition,
        "platform": "polyloom",
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": [-1]}],
    }


@router.post("/models/{condition:path}/infer", summary="Predict a tensor of texts")
async def infer(condition: str, body: InferRequest, shared: Shared, key: Caller, response: Response) -> dict[str, Any]:
    """Predict texts; each prediction is a JSON text."""
    texts = [text for tensor in body.inputs for text in tensor.data]
    if [tensor.datatype for tensor in body.inputs] != ["BYTES"] or not all(isinstance(text, str) for text in texts):
        raise PolyloomError(f"{condition}: expected one input of datatype BYTES, with texts as JSON data.")
    answers = await shared.answers(condition, texts, key, response)
    data = [json.dumps(answer["prediction"], ensure_ascii=False) for answer in answers]
    output = {"name": OUTPUT, "datatype": "BYTES", "shape": [len(data)], "data": data}
    return {
        "id": body.id,
        "model_name": condition,
        "model_version": answers[0]["version"] if answers else "",
        "outputs": [output],
    }
