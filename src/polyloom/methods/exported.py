"""A method that looks up exported weights by condition. It has no trainable parameters."""

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
    """Settings of exported adapters: none."""

    name: ClassVar[str] = "stored"


class ExportedAdapters(Method):
    """A method that looks up exported weights by condition.

    Args:
        exported: The weights of each condition, all of the same layout.
        shape: Shape of the backbone that the weights belong to.
        labels: Number of labels by task; ``None`` for tasks without labels.
    """

    config_type = ExportedAdaptersConfig
    paper = "the paper of the exported method"
    summary = "weights that were exported, looked up by condition"

    def __init__(
        self, exported: Mapping[Condition, Weights], *, shape: BackboneShape, labels: Mapping[str, int | None]
    ) -> None:
        languages = dict.fromkeys(language for condition in exported for language in condition.languages)
        super().__init__(ExportedAdaptersConfig(), shape=shape, inventory=Inventory(tuple(languages), labels))
        self.conditions = Index("condition", map(str, exported))
        layouts = {condition: _layout(weights) for condition, weights in exported.items()}
        first = next(iter(layouts))
        for condition, layout in layouts.items():
            if layout != layouts[first]:
                raise ConditionError(
                    f"{condition}: its adapter has another layout than that of {first}. Load it alone."
                )
        together = Weights.cat(list(exported.values()))
        self.blocks = together.blocks
        self.tables = nn.ModuleList(
            nn.ParameterDict({name: nn.Parameter(t, requires_grad=False) for name, t in block.tensors.items()})
            for block in together.blocks
        )

    def pair_row(self, condition: Condition) -> int:
        """Return the row of the condition among the exported ones."""
        return self.conditions.row(str(condition))

    def forward(self, ids: ConditionIds) -> Weights:
        """Look up the weights of the conditions."""
        blocks = zip(self.blocks, self.tables, strict=True)
        return Weights(tuple(replace(b, tensors=_pick(tables, ids.pair_K)) for b, tables in blocks))

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage without trainable parameters."""
        return (Stage("none", ()),)


def _pick(tables: nn.Module, rows_K: Tensor) -> dict[str, Tensor]:
    return {name: table.index_select(0, rows_K) for name, table in tables.named_parameters()}


def _layout(weights: Weights) -> list[object]:
    return [
        (b.kind, b.placement, b.sites, {name: t.shape[1:] for name, t in b.tensors.items()}) for b in weights.blocks
    ]
