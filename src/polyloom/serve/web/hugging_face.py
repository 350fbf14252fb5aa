"""Hugging Face Inference: ``InferenceClient(model="http://host/models/ner/tr").token_classification(…)``."""

from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from polyloom.errors import PolyloomError
from polyloom.metrics.spans import Span, spans
from polyloom.serve.model_process import Message
from polyloom.serve.web.context import Caller, Shared
from polyloom.serve.web.problems import OTHER_RESPONSES

router = APIRouter(prefix="/models", tags=["Hugging Face"], responses=OTHER_RESPONSES)
PAIRS = (("question", "context"), ("premise", "hypothesis"), ("text", "text_pair"))


class InferenceRequest(BaseModel):
    """The body that Hugging Face's client posts."""

    inputs: str | list[str] | dict[str, Any]
    parameters: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


@router.post("/{condition:path}", summary="Predict as Hugging Face's inference servers do", response_model=Any)
async def infer(condition: str, body: InferenceRequest, shared: Shared, key: Caller, response: Response) -> Any:
    """Answer a text, several texts, or two named texts, such as question and context."""
    values: list[Any]
    if isinstance(body.inputs, list):
        values = body.inputs
    elif isinstance(body.inputs, str):
        values = [body.inputs]
    else:
        pairs = [[body.inputs.get(first), body.inputs.get(second)] for first, second in PAIRS]
        values = [pair for pair in pairs if all(isinstance(text, str) for text in pair)][:1]
        if not values:
            names = ", or ".join(" and ".join(pair) for pair in PAIRS)
            raise PolyloomError(f"{condition}: inputs must be a text, texts, or {names}.")
    answers = await shared.answers(condition, values, key, response)
    results = [to_hugging_face(answer, value) for answer, value in zip(answers, values, strict=True)]
    return results if isinstance(body.inputs, list) else results[0]


def to_hugging_face(answer: Message, value: Any) -> Any:
    """Return an answer in the form that Hugging Face's client expects for its task."""
    prediction = answer["prediction"]
    if "start" in prediction:
        return {"answer": prediction["text"]} | {key: prediction[key] for key in ("score", "start", "end")}
    if "text" in prediction:
        return [{"translation_text": prediction["text"]}]
    if "label" in prediction:
        return [[{"label": prediction["label"], "score": prediction["score"]}]]
    if "heads" in prediction:  # Hugging Face has no parsers
        return prediction
    if not isinstance(value, str):
        raise PolyloomError(f"{answer['condition']}: inputs must be one text, since its words are tagged.")

    # Entities, or every word with its tag if the tags are not those of entities.
    labels, scores, offsets = prediction["labels"], prediction["scores"], prediction["offsets"]
    are_entities = all(label == "O" or label[1:2] == "-" for label in labels)
    groups = spans(labels) if are_entities else [Span(label, at, at + 1) for at, label in enumerate(labels)]
    return [
        {
            "entity_group": label,
            "score": min(scores[start:end]),
            "word": value[offsets[start][0] : offsets[end - 1][1]],
            "start": offsets[start][0],
            "end": offsets[end - 1][1],
        }
        for label, start, end in groups
    ]
