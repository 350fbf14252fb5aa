"""Hugging Face Inference: ``InferenceClient(model="http://host/models/ner/tr").token_classification(…)``."""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from polyloom.errors import PolyloomError
from polyloom.metrics.spans import Span, spans
from polyloom.serve.model_process import Message
from polyloom.serve.web.context import Caller, Shared

router = APIRouter(prefix="/models", tags=["Hugging Face"])
_PAIRS = (("question", "context"), ("premise", "hypothesis"), ("text", "text_pair"))


class InferenceRequest(BaseModel):
    """The body that Hugging Face's client posts."""

    inputs: str | list[str] | dict[str, Any]
    parameters: dict[str, Any] = Field(default_factory=dict)


@router.post("/{condition:path}", summary="Predict as Hugging Face's inference servers do", response_model=Any)
async def infer(condition: str, body: InferenceRequest, shared: Shared, key: Caller, response: Response) -> Any:
    """Answer a text, a list of texts, or two texts: question and context, premise and hypothesis, text and text_pair.

    Parameters are not looked at.
    """
    values = body.inputs if isinstance(body.inputs, list) else [_value(condition, body.inputs)]
    answers = await shared.answers(condition, values, key, response)
    found = [plain(answer, value) for answer, value in zip(answers, values, strict=True)]
    return found if isinstance(body.inputs, list) else found[0]


def _value(condition: str, inputs: str | dict[str, Any]) -> str | list[str]:
    if isinstance(inputs, str):
        return inputs
    for names in _PAIRS:
        if all(isinstance(inputs.get(name), str) for name in names):
            return [inputs[name] for name in names]
    raise PolyloomError(f"{condition}: inputs must be a text, texts, or {', or '.join(map(' and '.join, _PAIRS))}.")


def plain(answer: Message, value: Any) -> Any:
    """Return an answer in the form that Hugging Face's client expects for its task."""
    prediction = answer["prediction"]
    if "start" in prediction:
        return {"answer": prediction["text"]} | {key: prediction[key] for key in ("score", "start", "end")}
    if "text" in prediction:
        return [{"translation_text": prediction["text"]}]
    if "label" in prediction:
        return [[{"label": prediction["label"], "score": prediction["score"]}]]
    if "heads" in prediction:
        return prediction
    if not isinstance(value, str):
        raise PolyloomError(f"{answer['condition']}: inputs must be one text, since its words are tagged.")
    return _entities(prediction, value)


def _entities(prediction: Message, text: str) -> list[Message]:
    """Return entities, or every word with its tag if tags are not of entities."""
    labels, scores, offsets = prediction["labels"], prediction["scores"], prediction["offsets"]
    are_entities = all(label == "O" or label[1:2] == "-" for label in labels)
    found = spans(labels) if are_entities else [Span(label, at, at + 1) for at, label in enumerate(labels)]
    return [
        {
            "entity_group": label,
            "score": min(scores[start:end]),
            "word": text[offsets[start][0] : offsets[end - 1][1]],
            "start": offsets[start][0],
            "end": offsets[end - 1][1],
        }
        for label, start, end in found
    ]
