"""The models of an engine, runs and exported adapters whose backbones share equal tensors, and their answers."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polyloom.backbones.backbone import hash_tensors
from polyloom.conditions import Condition
from polyloom.data.kinds import prediction_to_dict
from polyloom.data.records import Prediction
from polyloom.errors import ConditionError
from polyloom.tasks.base import Example, Task
from polyloom.workflows.run import Run

MAX_CHECKED = 1 << 16  # conditions that a model remembers as checked


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prediction, with what made it."""

    condition: Condition
    kind: str
    """Kind of its record, which says what the prediction is."""
    prediction: Prediction
    """The prediction, as `Run.predict` returns it."""
    model: str
    """Name of the run."""
    version: str
    """Its checkpoint."""
    weights: str
    """Hash of the weights that made the prediction."""
    zero_shot: bool
    """Whether the run had no training data of this condition."""
    cached: bool = False
    """Whether the weights of the condition were in the cache. Otherwise they were made for this batch."""
    cut: bool = False
    """Whether the input was longer than the model's maximum and was cut."""
    waited: float = 0.0
    """Seconds in the queue."""
    computed: float = 0.0
    """Seconds in the batch."""
    rows: int = 1
    """Number of requests in the batch."""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data for JSON; a generated text is ``{"text": …}``."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "condition": str(self.condition),
            "prediction": prediction_to_dict(self.prediction),
        }


@dataclass(eq=False)
class ServedModel:
    """A run that an engine serves."""

    run: Run
    _checked: set[Condition] = field(default_factory=set, repr=False)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.path.resolve().name

    @cached_property
    def version(self) -> str:
        """The checkpoint, and the beginning of the hash of what was trained."""
        return f"{self.run.checkpoint.name}@{self._hash[:12]}"

    @cached_property
    def _hash(self) -> str:
        """Hash of everything that predictions depend on; computed once, as weights do not change while served."""
        model = self.run.model
        # The fingerprint stands for the backbone's tensors, which may be gigabytes.
        others = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("backbone.")}
        return hash_tensors(others, begin=model.backbone.fingerprint())

    def task(self, condition: Condition) -> Task:
        """Return the task of a condition."""
        return self.run.model.task(condition.task)

    def is_cut(self, example: Example) -> bool:
        """Return whether an example is longer than the model's maximum and is cut."""
        predictor, task = self.run.predictor, self.task(example.condition)
        return not task.generates and task.is_cut(
            example.row, tokenizer=predictor.tokenizer, max_length=predictor.max_length
        )

    def require(self, condition: Condition) -> None:
        """Raise an error if the model cannot predict a condition, or was never trained for it."""
        if condition in self._checked:
            return
        self.run.model.method.require_supported(condition)
        self.task(condition).check(condition, self.run.predictor.tokenizer)
        if part := self.run.loaded.trained_parts.missing(condition):
            raise ConditionError(f"{condition}: the {part} was not trained, so predictions would be arbitrary.")
        if len(self._checked) < MAX_CHECKED:
            self._checked.add(condition)

    @cached_property
    def example(self) -> Condition:
        """A condition that was trained, and that can be predicted if there is any such."""
        conditions = [Condition.parse(name) for name in self.run.trained_on]
        trained = [condition for condition in conditions if condition.task in self.run.model.tasks]
        predicted = [condition for condition in trained if self.task(condition).formats()]
        return (predicted or trained)[0]

    def weights_hash(self, condition: Condition) -> str:
        """Name the weights of a condition, which depend on the trained parameters and the condition alone."""
        return hashlib.sha256(f"{self._hash} {condition}".encode()).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """Describe the model: its tasks, each with its kind of prediction, its languages and directions."""
        model = self.run.model
        return {
            "name": self.name, "version": self.version, "method": model.method.config.name,
            "tasks": {
                name: {"fields": task.record_kind().fields, "bilingual": task.bilingual}
                for name, task in model.tasks.items()
                if task.formats()
            },
            "languages": list(model.method.languages), "directions": list(model.method.directions),
            "max_length": self.run.predictor.max_length,
        }  # fmt: skip

    def answer(self, condition: Condition, prediction: Any, **about: Any) -> Answer:
        """Build an answer of this model."""
        return Answer(
            condition=condition, kind=self.task(condition).kind, prediction=prediction, model=self.name,
            version=self.version, weights=self.weights_hash(condition),
            zero_shot=str(condition) not in self.run.loaded.trained_parts.names, **about,
        )  # fmt: skip


def share_tensors(runs: Iterable[Run]) -> None:
    """Let the backbones of runs share one tensor wherever theirs are equal; they must not be trained afterwards."""
    known: dict[str, list[Tensor]] = {}  # distinct tensors by name: runs may have trained a parameter in different ways
    for run in runs:
        for name, parameter in run.model.backbone.model.named_parameters():
            tensor = parameter.data
            for other in known.setdefault(name, []):
                if (other.dtype, other.device) == (tensor.dtype, tensor.device) and torch.equal(other, tensor):
                    parameter.data = other
                    break
            else:
                known[name].append(tensor)
