"""The models of an engine: runs and exported adapters, which share a backbone in memory where they have the same."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from polyloom.backbones.backbone import hash_tensors
from polyloom.conditions import Condition
from polyloom.errors import ConditionError
from polyloom.inference.untrained import untrained_part
from polyloom.serve.answers import Answer
from polyloom.tasks.base import Example, Task
from polyloom.workflows.run import Run, load

CHECKED = 1 << 16  # conditions that are remembered as checked


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
        """Hash of everything that predictions depend on, beside the backbone's frozen part."""
        model = self.run.model
        return hash_tensors(
            {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("backbone.")},
            begin=model.backbone.fingerprint(),
        )

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
        if part := untrained_part(condition, self.run.model.method, self._trained_on):
            raise ConditionError(f"{condition}: the {part} was not trained, so predictions would be arbitrary.")
        if len(self._checked) < CHECKED:
            self._checked.add(condition)

    def weights_hash(self, condition: Condition) -> str:
        """Hash the weights of a condition: they depend on the trained parameters and the condition alone."""
        return hashlib.sha256(f"{self._hash} {condition}".encode()).hexdigest()[:16]

    def answer(self, condition: Condition, prediction: Any, **about: Any) -> Answer:
        """Build an answer of this model."""
        return Answer(
            condition=condition, prediction=prediction, model=self.name, version=self.version,
            weights=self.weights_hash(condition), zero_shot=str(condition) not in self._trained_on, **about,
        )  # fmt: skip

    @cached_property
    def _trained_on(self) -> frozenset[str]:
        return frozenset(self.run.trained_on)


def load_models(sources: Iterable[str | Path], *, device: str | None = None) -> list[ServedModel]:
    """Load runs, exported adapters and repositories of adapters; equal backbones are kept once."""
    return share_backbones([load(source, device=device) for source in sources])


def share_backbones(runs: Sequence[Run]) -> list[ServedModel]:
    """Make runs with the same backbone use one in memory."""
    known: dict[tuple[str, str], Any] = {}
    for run in runs:
        backbone = run.model.backbone
        key = backbone.fingerprint(), _settings(backbone.model.config)
        run.model.backbone = known.setdefault(key, backbone)
    return [ServedModel(run) for run in runs]


def _settings(config: Any) -> str:
    """Return the settings of a Transformers model, without where it came from."""
    return json.dumps({k: v for k, v in config.to_dict().items() if k != "_name_or_path"}, sort_keys=True, default=str)
