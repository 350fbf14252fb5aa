"""The answer to a request: a prediction, with what made it."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from polyloom.conditions import Condition
from polyloom.inference.predictions import Prediction


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prediction, with what made it.

    Attributes:
        condition: The condition.
        prediction: The prediction, as `Run.predict` returns it.
        model: Name of the run.
        version: Its checkpoint.
        weights: Hash of the weights that made the prediction.
        zero_shot: Whether the run had no training data of this condition.
        cached: Whether the weights of the condition were there already. Otherwise they were made for this batch.
        cut: Whether the input was longer than the model's maximum and was cut.
        waited: Seconds in the queue.
        computed: Seconds in the batch.
        rows: Number of requests in the batch.
    """

    condition: Condition
    prediction: Prediction
    model: str
    version: str
    weights: str
    zero_shot: bool
    cached: bool = False
    cut: bool = False
    waited: float = 0.0
    computed: float = 0.0
    rows: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data for JSON; a generated text is ``{"text": …}``."""
        prediction = {"text": self.prediction} if isinstance(self.prediction, str) else asdict(self.prediction)
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "condition": str(self.condition),
            "prediction": prediction,
        }
