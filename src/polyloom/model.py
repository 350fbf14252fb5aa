"""A backbone and a method, put together: rows with conditions in, hidden states, logits or text out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from polyloom.backbones import Backbone
from polyloom.errors import RowError
from polyloom.methods import Method, MethodConfig, build_method
from polyloom.nn.linear import linear
from polyloom.types import Condition, ConditionIds, Stage, Weights, World

Rows = Sequence[Condition | str] | ConditionIds


class Model(nn.Module):
    """One backbone with one method.

    Args:
        backbone: The model whose sites listen.
        method: Settings of the method.
        languages: Languages it is built for; more can be added later.
        tasks: Tasks, with their number of labels where they have a label set.
        directions: Pairs, for methods that store something per pair: ``en/tr``, ``en/*``, ``*/en``; from the
            first language to every other by default.
    """

    def __init__(
        self,
        backbone: Backbone,
        method: MethodConfig,
        *,
        languages: Iterable[str],
        tasks: Mapping[str, int | None] | Iterable[str],
        directions: Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.method = build_method(method, shape=backbone.shape, world=World.of(languages, tasks, directions))
        self.set_stage(0)

    def weights(self, rows: Rows) -> Weights:
        """The weights of a batch, laid out for its rows."""
        ids = rows if isinstance(rows, ConditionIds) else self.method.encode(rows)
        made: Weights = self.method(ids)
        return made.for_rows(ids.rows_B)

    def forward(self, inputs: Mapping[str, Any], rows: Rows, *, weights: Weights | None = None) -> Any:
        """Run the backbone with every row's own weights.

        Args:
            inputs: What the Transformers model takes.
            rows: One condition per row, or what `method.encode` made of them.
            weights: Ready weights for these rows, to save making them again.
        """
        weights = self.weights(rows) if weights is None else weights
        with self.backbone.using(weights, num_rows=_count(inputs, rows, weights)):
            return self.backbone(**inputs)

    @torch.no_grad()
    def generate(self, inputs: Mapping[str, Any], rows: Rows, *, weights: Weights | None = None, **options: Any) -> Any:
        """Generate text with Transformers' `generate`; weights are made once for the whole batch.

        Args:
            inputs: Input ids and attention mask.
            rows: One condition per row.
            weights: Ready weights for these rows.
            **options: For `generate`, such as ``num_beams`` and ``max_new_tokens``.
        """
        weights = self.weights(rows) if weights is None else weights
        defaults = self.backbone.model.generation_config
        beams, returned = (
            int(options.get(key) or getattr(options.get("generation_config", defaults), key, None) or 1)
            for key in ("num_beams", "num_return_sequences")
        )
        with self.backbone.using(weights, num_rows=_count(inputs, rows, weights), expand=max(beams, returned)):
            return self.backbone.model.generate(**inputs, **options)

    def set_stage(self, stage: int | Stage) -> Stage:
        """Let exactly the groups of a stage learn; everything else is frozen."""
        stage = self.method.stages()[stage] if isinstance(stage, int) else stage
        self.requires_grad_(False)
        for group, parameters in self.groups().items():
            if group in stage.trains:
                for parameter in parameters:
                    parameter.requires_grad_()
        return stage

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by group: the method's own, ``backbone`` and its norms."""
        return parameter_groups(self.method, self.backbone)


def parameter_groups(method: Method, backbone: Backbone) -> dict[str, list[nn.Parameter]]:
    """Everything that a stage can name, except task heads."""
    return method.groups() | {
        "backbone": list(backbone.parameters()),
        "backbone.norms": list(backbone.norm_parameters().values()),
    }


def classify(hidden_BTD: Tensor, weights: Weights) -> Tensor:
    """Apply generated classifiers (psf), each row its own."""
    tensors = weights.block("classifier").at(0)
    return linear(hidden_BTD, tensors["weight"], tensors["bias"])


def _count(inputs: Mapping[str, Any], rows: Rows, weights: Weights) -> int:
    """How many rows there are, by the inputs, by the conditions and by the weights alike."""
    batch = next(len(value) for value in inputs.values() if isinstance(value, Tensor))
    if isinstance(rows, ConditionIds):
        count, distinct = len(rows.rows_B), len(rows.task_K)
    else:
        count, distinct = len(rows), len(set(map(str, rows)))
    if batch != count:
        raise RowError(f"batch: {batch} rows of input, but {count} conditions. Give one condition per row.")
    for block in weights.blocks:
        for tensor in block.tensors.values():
            if len(tensor) != count and (len(tensor) != 1 or distinct > 1):
                raise RowError(f"weights: {len(tensor)} sets for {count} rows of {distinct} conditions.")
    return count
