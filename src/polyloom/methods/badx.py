"""BAD-X (Parović et al. 2022): bilingual adapters per source and target, and the multilingual adapter as baseline.

As in the paper, a condition ``pos/en/sw`` uses the adapter of the pair en/sw for text in any language, in training and
at inference, and each pair has task adapters of its own. ``pos/sw`` is short for the pair if exactly one pair ends in
sw.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyloom.conditions import Condition, ConditionIds, Index
from polyloom.errors import ConditionError
from polyloom.methods.madx import INIT_STD, StackedConfig, StackedMethod
from polyloom.nn.blocks import shapes_of
from polyloom.nn.tables import Bank, Grid, normal_init
from polyloom.weights import Site


@dataclass(frozen=True, kw_only=True)
class BadXConfig(StackedConfig):
    """Settings of BAD-X."""

    name: ClassVar[str] = "badx"
    invertible: bool = False
    """Whether to add an invertible adapter to the embeddings. Default: false, as in the paper."""


@dataclass(frozen=True, kw_only=True)
class MultilingualConfig(StackedConfig):
    """Settings of the multilingual adapter, the baseline of the BAD-X paper."""

    name: ClassVar[str] = "multilingual"
    invertible: bool = False
    """Whether to add an invertible adapter to the embeddings. Default: false, as in the paper."""


class BadX(StackedMethod):
    """A method with one bilingual adapter per pair of languages, and task adapters stacked on top."""

    config_type = BadXConfig
    paper = "Parović et al. 2022, BAD-X"
    summary = "one bilingual adapter per (source, target), task adapters stacked on top"
    keyed_by = "pair"
    conditioned_on = ("task", "pair")

    def num_keys(self) -> int:
        """Count the pairs."""
        return len(self.directions)

    def keys(self, ids: ConditionIds, sites: tuple[Site, ...]) -> Tensor:
        """Return the row of the condition's pair, the same at all sites, ``[K, S]``."""
        return ids.pair_K[:, None].expand(-1, len(sites))

    def build_task_adapters(self) -> Bank:
        """Build the task adapters of every pair; those of raw text have no effect."""
        tensors = self.block_tensors(self.config.task_adapter_size)
        sizes, init = (len(self.tasks), len(self.directions)), normal_init(INIT_STD, tensors)
        grid = Grid(*sizes, num_sites=len(self.shape.sites), shapes=shapes_of(tensors), init=init)
        return self.pass_raw_text_through(grid)

    def task_rows(self, ids: ConditionIds) -> Tensor:
        """Return the row of the task adapter of each condition: of its task and its pair."""
        return ids.task_K * len(self.directions) + ids.pair_K

    def add_direction(self, source: str, target: str, *, like: str | None = None) -> None:
        """Add a pair of known languages, with a bilingual adapter and task adapters."""
        row = None if like is None else self.directions.row(like)
        super().add_direction(source, target, like=like)
        if self.labelled:
            assert isinstance(self.task_adapters, Grid)
            self.task_adapters.append_pair(row)
            self.pass_raw_text_through(self.task_adapters)

    def trained_by(self, given: Condition) -> tuple[Condition, ...]:
        """Return the pairs that data train: raw text all pairs with its language, labelled data all pairs from it."""
        if given.target is not None:
            return (given,)
        pairs = [pair.split("/") for pair in self.directions]
        return tuple(
            Condition(given.task, source, target)
            for source, target in pairs
            if given.source == source or (given.task in self.raw_text and given.source == target)
        )

    def pair_row(self, condition: Condition) -> int:
        """Return the row of the pair that the condition names, or of the only pair that ends in its language."""
        return find_pair(self.directions, condition)


class Multilingual(StackedMethod):
    """A method with one language adapter that all languages share, and task adapters stacked on top."""

    config_type = MultilingualConfig
    paper = "Parović et al. 2022, BAD-X (baseline)"
    summary = "one language adapter shared by all languages, task adapters stacked on top"
    keyed_by = "fixed"
    decoder_depends_on = ("task",)
    conditioned_on = ("task",)

    def num_keys(self) -> int:
        """Return 1, since all languages share one adapter."""
        return 1

    def keys(self, ids: ConditionIds, sites: tuple[Site, ...]) -> Tensor:
        """Return row 0 for all conditions and sites, ``[K, S]``."""
        return torch.zeros(len(ids.task_K), len(sites), dtype=torch.long, device=ids.task_K.device)


def find_pair(directions: Index, condition: Condition) -> int:
    """Find the row of a condition's pair among the stored pairs."""
    if condition.target is not None:
        return directions.row(f"{condition.source}/{condition.target}")
    ending = [pair for pair in directions if pair.partition("/")[2] == condition.source]
    if len(ending) != 1:
        raise ConditionError(
            f"{len(ending)} stored pairs end in {condition.source!r}"
            + (f" ({', '.join(ending[:8])})" if ending else "")
            + f". Name one: {condition.task}/source/{condition.source}."
        )
    return directions.row(ending[0])
