"""Add a method of your own: one adapter per task, shared by all languages.

Use it on the command line: ``polyloom train recipe.yaml method.name=task-adapters --code examples/own_method.py``
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

import polyloom as pl
from polyloom.extend import (
    AdapterConfig,
    AdapterMethod,
    BackboneShape,
    Bank,
    ConditionIds,
    Inventory,
    Stage,
    Weights,
    register_method,
    shapes_of,
    xavier_init,
)


@dataclass(frozen=True, kw_only=True)
class TaskAdaptersConfig(AdapterConfig):
    """Settings of the method: those that all methods with adapters share."""

    name: ClassVar[str] = "task-adapters"


@register_method
class TaskAdapters(AdapterMethod):
    """Store one adapter per task."""

    config_type = TaskAdaptersConfig
    paper = "none: an example"
    summary = "one adapter per task, shared by all languages"
    preferred = ("layer",)
    conditioned_on = ("task",)

    def __init__(self, config: TaskAdaptersConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        tensors = self.block_tensors()
        self.adapters = Bank(
            "task",
            len(self.tasks),
            num_sites=len(shape.sites),
            shapes=shapes_of(tensors),
            init=xavier_init(tensors, identity=True),
        )

    def forward(self, ids: ConditionIds) -> Weights:
        """Look up the adapter of each condition's task, at every site."""
        tasks_KS = ids.task_K[:, None].expand(-1, len(self.shape.sites))
        return Weights((self.block(self.adapters(tasks_KS)),))

    def stages(self) -> tuple[Stage, ...]:
        """Train the adapters and the task heads; the backbone stays frozen."""
        return (Stage("joint", ("adapters", "heads")),)


def main() -> None:
    """Build a small model with the method and run a mixed batch."""
    backbone = pl.backbone_from_config(
        {"model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    )
    model = pl.Model(backbone, TaskAdaptersConfig(adapter_size=8), languages=["en", "tr"], tasks=["mlm"])
    output = model({"input_ids": torch.randint(5, 100, (2, 6))}, ["mlm/en", "mlm/tr"])
    print("logits:", tuple(output.logits.shape), "parameters:", sum(p.numel() for p in model.method.parameters()))


if __name__ == "__main__":
    main()
