"""Weights: blocks of tensors at the sites of a backbone, for conditions or for the rows of a batch.

Shape legend, used as a suffix of tensor names throughout the package:

    B rows of a batch        T tokens of a row         D width of the backbone
    K distinct conditions    S sites of a block        R rows of weights: 1 (shared) or B (one per row)
    E any other width (bottleneck, hypernetwork, labels)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from polyloom.errors import BackboneError, suggest

Placement = Literal["layer", "output", "norm"]
Shapes = Mapping[str, tuple[int, ...]]


class Site(NamedTuple):
    """A place in the backbone: one layer of one stack."""

    stack: str
    layer: int

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}"


@dataclass(frozen=True)
class Block:
    """Weights of one kind for one placement: at every site, for every condition (or row).

    Attributes:
        kind: ``bottleneck``, ``lora``, ``invertible`` or ``classifier``.
        placement: Where in a layer it acts; ``embedding`` for invertible adapters, ``head`` for classifiers.
        sites: Its sites, in the order of the tensors' second dimension.
        tensors: By name, each ``[K, S, ...]`` as made by a method, ``[R, S, ...]`` once laid out for a batch.
    """

    kind: str
    placement: str
    sites: tuple[Site, ...]
    tensors: Mapping[str, Tensor]

    def by_site(self) -> list[dict[str, Tensor]]:
        """The tensors of each site: without a row dimension if shared by all rows, else one set per row.

        All at once: the gradients of sites taken one by one would each be as large as those of all of them.
        """
        shared = next(iter(self.tensors.values())).shape[0] == 1
        parts = {name: t[0].unbind(0) if shared else t.unbind(1) for name, t in self.tensors.items()}
        return [{name: part[index] for name, part in parts.items()} for index in range(len(self.sites))]


@dataclass(frozen=True)
class Weights:
    """What a method makes: blocks, in the order in which they act at a site."""

    blocks: tuple[Block, ...] = ()

    def for_rows(self, rows_B: Tensor) -> "Weights":
        """Lay out one set per row, once per batch; a single condition stays one shared set."""
        return self._map(lambda tensor: tensor if tensor.shape[0] == 1 else tensor.index_select(0, rows_B))

    def take(self, rows: slice) -> "Weights":
        """Of weights laid out for a batch, those of some of its rows."""
        return self._map(lambda tensor: tensor if tensor.shape[0] == 1 else tensor[rows])

    def alone(self, index: int) -> "Weights":
        """The weights of one condition, in memory of their own."""
        return self._map(lambda tensor: tensor[index : index + 1].clone() if tensor.shape[0] > 1 else tensor)

    @staticmethod
    def together(parts: "Sequence[Weights]") -> "Weights":
        """The weights of several conditions, one after the other."""
        first = parts[0]
        blocks = (
            replace(
                b, tensors={name: torch.cat([part.blocks[i].tensors[name] for part in parts]) for name in b.tensors}
            )
            for i, b in enumerate(first.blocks)
        )
        return Weights(tuple(blocks)) if len(parts) > 1 else first

    def num_bytes(self) -> int:
        """Memory that all tensors take."""
        return sum(t.numel() * t.element_size() for block in self.blocks for t in block.tensors.values())

    def to(self, dtype: torch.dtype) -> "Weights":
        """Cast every tensor."""
        return self._map(lambda tensor: tensor.to(dtype))

    def block(self, kind: str) -> Block:
        """The only block of a kind."""
        (found,) = [block for block in self.blocks if block.kind == kind]
        return found

    def num_parameters(self) -> int:
        """How many numbers one condition's weights hold."""
        return sum(t.numel() // t.shape[0] for block in self.blocks for t in block.tensors.values())

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Weights":
        blocks = (replace(b, tensors={name: change(t) for name, t in b.tensors.items()}) for b in self.blocks)
        return Weights(tuple(blocks))


@dataclass(frozen=True)
class BackboneShape:
    """What a method must know of a backbone to make weights for it.

    Attributes:
        family: Name of the family, for messages.
        width: Hidden size, the same at every site.
        sites: All sites, encoder before decoder.
        placements: The placements the family has.
        projections: Input and output size of the projections that LoRA adapts, by name.
    """

    family: str
    width: int
    sites: tuple[Site, ...]
    placements: tuple[str, ...]
    projections: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def stacks(self) -> tuple[str, ...]:
        """``encoder``, ``decoder`` or both, in the order of computation."""
        return tuple(dict.fromkeys(site.stack for site in self.sites))

    def choose(self, wanted: str | None, preferred: Sequence[str]) -> str:
        """The placement wanted, or the first preferred one that the family has."""
        for placement in [wanted] if wanted else preferred:
            if placement in self.placements:
                return placement
        raise BackboneError(
            f"method.placement: {self.family} has no placement {wanted or preferred[0]!r}. "
            f"{suggest(wanted or preferred[0], self.placements)}"
            " Pre-norm families have no 'norm': there Pfeiffer's formula is that of 'layer'."
        )
