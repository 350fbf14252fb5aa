"""BAD-X (Parović et al. 2022): bilingual adapters per source and target, and the multilingual adapter as baseline.

A condition ``pos/en/sw`` uses the adapter of the pair en/sw whatever the language of the text, in training and at
inference, as in the paper. ``pos/sw`` stands for the pair if only one ends in sw.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyloom.conditions import Condition, ConditionIds, Index
from polyloom.errors import ConditionError
from polyloom.methods.madx import StackedConfig, StackedMethod
from polyloom.weights import Site


@dataclass(frozen=True, kw_only=True)
class BadXConfig(StackedConfig):
    """Settings of BAD-X; the paper's runs have no invertible adapters."""

    name: ClassVar[str] = "badx"
    invertible: bool = False


@dataclass(frozen=True, kw_only=True)
class MultilingualConfig(StackedConfig):
    """Settings of the multilingual adapter."""

    name: ClassVar[str] = "multilingual"
    invertible: bool = False


class BadX(StackedMethod):
    """One bilingual adapter per pair."""

    config_type = BadXConfig
    paper = "Parović et al. 2022, BAD-X"
    summary = "one bilingual adapter per (source, target), task adapters stacked on top"
    keyed_by = "pair"
    conditioned_on = ("task", "pair")

    def num_keys(self) -> int:
        """One per pair."""
        return len(self.directions)

    def keys(self, ids: ConditionIds, sites: tuple[Site, ...]) -> Tensor:
        """The pair, in every stack."""
        return ids.pair_K[:, None].expand(-1, len(sites))

    def trained_by(self, given: Condition) -> tuple[Condition, ...]:
        """Raw text trains all pairs with its language; labelled data those that lead away from it."""
        if given.target is not None:
            return (given,)
        pairs = [pair.split("/") for pair in self.directions]
        return tuple(
            Condition(given.task, source, target)
            for source, target in pairs
            if given.source == source or (given.task in self.raw_text and given.source == target)
        )

    def pair_row(self, condition: Condition) -> int:
        """The pair named, or the only one that ends in the condition's language."""
        return find_pair(self.directions, condition)


class Multilingual(StackedMethod):
    """One adapter for all languages."""

    config_type = MultilingualConfig
    paper = "Parović et al. 2022, BAD-X (baseline)"
    summary = "one language adapter shared by all languages, task adapters stacked on top"
    keyed_by = "fixed"
    conditioned_on = ("task",)

    def num_keys(self) -> int:
        """A single one."""
        return 1

    def keys(self, ids: ConditionIds, sites: tuple[Site, ...]) -> Tensor:
        """Always the first."""
        return torch.zeros(len(ids.task_K), len(sites), dtype=torch.long, device=ids.task_K.device)


def find_pair(directions: Index, condition: Condition) -> int:
    """Row of a condition's pair among the stored ones."""
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
