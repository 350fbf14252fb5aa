"""Stored weights: what any method made for single conditions, looked up. Nothing is generated, nothing learns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from polyloom.conditions import Condition, ConditionIds, Index, Inventory
from polyloom.errors import ConditionError
from polyloom.methods.base import Method, MethodConfig, Stage
from polyloom.weights import BackboneShape, Weights


@dataclass(frozen=True, kw_only=True)
class ExportedAdaptersConfig(MethodConfig):
    """There is nothing to set: what is stored says it all."""

    name: ClassVar[str] = "stored"


class ExportedAdapters(Method):
    """Weights by condition.

    Args:
        made: The weights of each condition, all of the same layout.
        shape: Of the backbone they are for.
        labels: Sizes of the tasks' label sets.
    """

    config_type = ExportedAdaptersConfig
    paper = "of the method that made the weights"
    summary = "weights that were exported, looked up by condition"

    def __init__(
        self, made: Mapping[Condition, Weights], *, shape: BackboneShape, labels: Mapping[str, int | None]
    ) -> None:
        languages = dict.fromkeys(language for condition in made for language in condition.languages)
        super().__init__(ExportedAdaptersConfig(), shape=shape, inventory=Inventory(tuple(languages), labels))
        self.conditions = Index("condition", map(str, made))
        layouts = {condition: _layout(weights) for condition, weights in made.items()}
        first = next(iter(layouts))
        for condition, layout in layouts.items():
            if layout != layouts[first]:
                raise ConditionError(
                    f"{condition}: its adapter is built otherwise than that of {first}. Load it alone."
                )
        together = Weights.cat(list(made.values()))
        self.blocks = together.blocks
        self.tables = nn.ModuleList(
            nn.ParameterDict({name: nn.Parameter(t, requires_grad=False) for name, t in block.tensors.items()})
            for block in together.blocks
        )

    def pair_row(self, condition: Condition) -> int:
        """Row of the condition itself."""
        return self.conditions.row(str(condition))

    def forward(self, ids: ConditionIds) -> Weights:
        """Look them up."""
        blocks = zip(self.blocks, self.tables, strict=True)
        return Weights(tuple(replace(b, tensors=_pick(tables, ids.pair_K)) for b, tables in blocks))

    def stages(self) -> tuple[Stage, ...]:
        """One in which nothing learns."""
        return (Stage("none", ()),)


def _pick(tables: nn.Module, rows_K: Tensor) -> dict[str, Tensor]:
    return {name: table.index_select(0, rows_K) for name, table in tables.named_parameters()}


def _layout(weights: Weights) -> list[object]:
    return [
        (b.kind, b.placement, b.sites, {name: t.shape[1:] for name, t in b.tensors.items()}) for b in weights.blocks
    ]
