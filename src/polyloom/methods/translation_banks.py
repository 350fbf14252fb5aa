"""Stored adapters of multilingual translation: per language (Bapna and Firat 2019, monolingual) and per pair.

As in the Hyper-Adapters paper: layer norm inside the block, Xavier-uniform matrices, after the whole layer. They
depend on languages alone; the task of a condition is not looked at.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from polyloom.conditions import Condition, ConditionIds, Inventory
from polyloom.methods.badx import find_pair
from polyloom.methods.base import AdapterConfig, AdapterMethod, Part, Stage
from polyloom.nn.blocks import shapes_of
from polyloom.nn.tables import Bank, xavier_init
from polyloom.weights import BackboneShape, Weights


@dataclass(frozen=True, kw_only=True)
class LangAdaptersConfig(AdapterConfig):
    """Settings of language adapters.

    Attributes:
        init: ``xavier``, or ``identity``: without effect at first, for a main network that is trained already.
    """

    name: ClassVar[str] = "lang-adapters"
    adapter_size: int = 128
    init: Literal["xavier", "identity"] = "xavier"


@dataclass(frozen=True, kw_only=True)
class PairAdaptersConfig(LangAdaptersConfig):
    """Settings of pair adapters, which are those of language adapters."""

    name: ClassVar[str] = "pair-adapters"


class LangAdapters(AdapterMethod):
    """One adapter per language: the source's in the encoder, the target's in the decoder."""

    config_type: ClassVar[type[LangAdaptersConfig]] = LangAdaptersConfig
    paper = "Bapna & Firat 2019; Baziotis et al. 2022 (baseline)"
    summary = "one adapter per language: the source's in the encoder, the target's in the decoder"
    preferred = ("layer",)
    norm = True
    keyed_by: ClassVar[str] = "language"
    conditioned_on: ClassVar[tuple[Part, ...]] = ("language",)

    def __init__(self, config: LangAdaptersConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        names = self.languages if self.keyed_by == "language" else self.directions
        tensors = self.block_tensors()
        init = xavier_init(tensors, identity=config.init == "identity")
        self.adapters = Bank(
            self.keyed_by, len(names), num_sites=len(shape.sites), shapes=shapes_of(tensors), init=init
        )

    def keys(self, ids: ConditionIds) -> Tensor:
        """Row of the adapter per condition and site ``[K, S]``."""
        return self.stack_languages(ids, self.shape.sites)

    def forward(self, ids: ConditionIds) -> Weights:
        """Look the adapters up."""
        return Weights((self.block(self.adapters(self.keys(ids))),))

    def stages(self) -> tuple[Stage, ...]:
        """Trained jointly with the main network, from scratch."""
        return (Stage("joint", ("adapters", "backbone", "heads")),)


class PairAdapters(LangAdapters):
    """One adapter per direction, in both stacks."""

    config_type = PairAdaptersConfig
    summary = "one adapter per direction (source, target)"
    keyed_by = "pair"
    conditioned_on = ("pair",)

    def keys(self, ids: ConditionIds) -> Tensor:
        """The pair, in every stack."""
        return ids.pair_K[:, None].expand(-1, len(self.shape.sites))

    def pair_row(self, condition: Condition) -> int:
        """The pair named, or the only one that ends in the condition's language."""
        return find_pair(self.directions, condition)
