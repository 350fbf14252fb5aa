"""Stored adapters for multilingual translation: per language (Bapna and Firat 2019, monolingual) and per pair.

As in the Hyper-Adapters paper, adapters have a layer norm and act after the whole layer. They depend on languages
alone; the task of a condition has no influence. The paper's adapters start Xavier-uniform (`init: xavier`): every
language then begins with a random map as strong as the layer before it.
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
    """Settings of language adapters."""

    name: ClassVar[str] = "lang-adapters"
    adapter_size: int = 128
    """Bottleneck size of the adapters, or the rank if `block` is ``lora``."""
    init: Literal["xavier", "identity"] = "identity"
    """Initialisation of the adapters. ``identity``: they have no effect before training. ``xavier``: Xavier-uniform
    matrices, as in the paper."""


@dataclass(frozen=True, kw_only=True)
class PairAdaptersConfig(LangAdaptersConfig):
    """Settings of pair adapters, the same as those of language adapters."""

    name: ClassVar[str] = "pair-adapters"


class LangAdapters(AdapterMethod):
    """A method with one adapter per language: the source's in the encoder, the target's in the decoder."""

    config_type: ClassVar[type[LangAdaptersConfig]] = LangAdaptersConfig
    paper = "Bapna & Firat 2019; Baziotis et al. 2022 (baseline)"
    summary = "one adapter per language: the source's in the encoder, the target's in the decoder"
    preferred = ("layer",)
    norm = "before"
    keyed_by: ClassVar[str] = "language"
    conditioned_on: ClassVar[tuple[Part, ...]] = ("language",)
    decoder_depends_on: tuple[str, ...] = ("target",)

    def __init__(self, config: LangAdaptersConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        names = self.languages if self.keyed_by == "language" else self.directions
        tensors = self.block_tensors()
        init = xavier_init(tensors, identity=config.init == "identity")
        self.adapters = Bank(
            self.keyed_by, len(names), num_sites=len(shape.sites), shapes=shapes_of(tensors), init=init
        )

    def keys(self, ids: ConditionIds) -> Tensor:
        """Return the row of the adapter per condition and site ``[K, S]``."""
        return self.stack_languages(ids, self.shape.sites)

    def forward(self, ids: ConditionIds) -> Weights:
        """Look up the adapters of all conditions and sites."""
        return Weights((self.block(self.adapters(self.keys(ids))),))

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage that trains the adapters jointly with the backbone."""
        return (Stage("joint", ("adapters", "backbone", "heads")),)


class PairAdapters(LangAdapters):
    """A method with one adapter per direction, in encoder and decoder."""

    config_type = PairAdaptersConfig
    summary = "one adapter per direction (source, target)"
    keyed_by = "pair"
    conditioned_on = ("pair",)
    decoder_depends_on = ("pair",)

    def keys(self, ids: ConditionIds) -> Tensor:
        """Return the row of the condition's pair, the same at all sites, ``[K, S]``."""
        return ids.pair_K[:, None].expand(-1, len(self.shape.sites))

    def pair_row(self, condition: Condition) -> int:
        """Return the row of the pair that the condition names, or of the only pair that ends in its language."""
        return find_pair(self.directions, condition)
