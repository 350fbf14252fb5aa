"""A request: an input that waits for its prediction."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from polyloom.conditions import Condition
from polyloom.inference.predictions import PreparedInput, make_prediction
from polyloom.serve.answers import Answer
from polyloom.serve.models import ServedModel
from polyloom.tasks.base import Example


@dataclass(eq=False, kw_only=True)
class Request:
    """One input that waits for its prediction.

    Attributes:
        model: The model that predicts it.
        condition: Its condition.
        source: The input.
        example: The encoded input.
        tokens: Its length.
        caller: Whose request it is; callers share the model fairly.
        future: Gets the `Answer`, or an error.
        arrived: When it was made.
        cached: Whether the weights of its condition were there when its batch began.
    """

    model: ServedModel
    condition: Condition
    source: PreparedInput
    example: Example
    tokens: int
    caller: str
    future: "asyncio.Future[Answer]"
    arrived: float = field(default_factory=time.monotonic)
    cached: bool = False

    @property
    def generates(self) -> bool:
        """Whether the prediction is text that is generated."""
        return self.model.task(self.condition).generates

    @property
    def batched_with(self) -> tuple[int, bool]:
        """What the requests of a batch have in common: the model, and whether it generates text."""
        return id(self.model), self.generates

    def answer(self, decoded: Any, confidence: Any, **about: Any) -> Answer:
        """Build the answer from the decoded value of the task's head."""
        prediction = make_prediction(self.model.task(self.condition), self.source, decoded, confidence)
        about |= {"cut": self.model.is_cut(self.example), "cached": self.cached}
        return self.model.answer(self.condition, prediction, **about)
