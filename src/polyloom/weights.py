"""Weights: blocks of tensors at the sites of a backbone, for conditions or for the rows of a batch.

Shape legend, used as a suffix of tensor names throughout the package:

    B rows of a batch        T tokens of a row         D width of the backbone
    K distinct conditions    S sites of a block        R rows of weights: 1 (shared) or B (one per row)
    E any other width (bottleneck, hypernetwork, labels)

Heads of tasks also use:

    X examples of a task     W words of an example    C choices of an example
    N single tokens          V vocabulary             L lengths, or tokens of a target

Attention and searches also use:

    H heads                  P keys that a block adds, or tokens of a prefix
    N rows in groups that share weights
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
    """Weights of one kind and placement, at every site, for every condition or row."""

    kind: str
    """Name of the kind: ``bottleneck``, ``lora``, ``invertible``, ``classifier`` or another registered one."""
    placement: str
    """Where in a layer it is applied, see `BlockKind.placements`."""
    sites: tuple[Site, ...]
    """The sites, in the order of the tensors' second dimension."""
    tensors: Mapping[str, Tensor]
    """Tensors by name: ``[K, S, ...]`` from a method, ``[R, S, ...]`` after `Weights.for_rows`."""

    def by_site(self) -> list[dict[str, Tensor]]:
        """Split the tensors by site: without a row dimension if all rows share them, else one set per row.

        `unbind` splits all sites at once. Indexing site by site would make each gradient as large as all together.
        """
        shared = next(iter(self.tensors.values())).shape[0] == 1
        unbound = {name: t[0].unbind(0) if shared else t.unbind(1) for name, t in self.tensors.items()}
        return [{name: tensors[index] for name, tensors in unbound.items()} for index in range(len(self.sites))]


@dataclass(frozen=True)
class Weights:
    """The output of a method for conditions, or for the rows of a batch."""

    blocks: tuple[Block, ...] = ()
    """The blocks, in the order in which they are applied at a site."""
    decoder_keys: tuple[tuple[int, ...], ...] = ()
    """What the weights of each condition (or row) in the decoder depend on, of an encoder-decoder. Those with the same
    key have the same weights there. Empty if that is not known."""

    def for_rows(self, rows_B: Tensor) -> "Weights":
        """Expand to one set of weights per row of a batch. A single condition stays one shared set."""
        keys = tuple(self.decoder_keys[row] for row in rows_B.tolist()) if self.decoder_keys else ()
        return self._map(lambda tensor: tensor if tensor.shape[0] == 1 else tensor.index_select(0, rows_B), keys)

    def slice_rows(self, rows: slice) -> "Weights":
        """Select the weights of some rows of the batch."""
        return self._map(lambda tensor: tensor if tensor.shape[0] == 1 else tensor[rows])

    def select(self, index: int) -> "Weights":
        """Copy the weights of one condition."""
        keys = self.decoder_keys[index : index + 1]
        return self._map(lambda tensor: tensor[index : index + 1].clone() if tensor.shape[0] > 1 else tensor, keys)

    @staticmethod
    def cat(weights: "Sequence[Weights]") -> "Weights":
        """Concatenate the weights of several conditions."""
        if len(weights) == 1:
            return weights[0]
        blocks = []
        for i, block in enumerate(weights[0].blocks):
            tensors = {name: torch.cat([one.blocks[i].tensors[name] for one in weights]) for name in block.tensors}
            blocks.append(replace(block, tensors=tensors))
        return Weights(tuple(blocks), tuple(key for one in weights for key in one.decoder_keys))

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next((t.device for block in self.blocks for t in block.tensors.values()), torch.device("cpu"))

    def num_bytes(self) -> int:
        """Return the memory of all tensors in bytes."""
        return sum(t.numel() * t.element_size() for block in self.blocks for t in block.tensors.values())

    def to(self, dtype: torch.dtype) -> "Weights":
        """Cast every tensor."""
        return self._map(lambda tensor: tensor.to(dtype), self.decoder_keys)

    def block(self, kind: str) -> Block:
        """Return the only block of a kind."""
        (only,) = [block for block in self.blocks if block.kind == kind]
        return only

    def num_parameters(self) -> int:
        """Count the weights of one condition."""
        return sum(t.numel() // t.shape[0] for block in self.blocks for t in block.tensors.values())

    def _map(self, change: Callable[[Tensor], Tensor], keys: tuple[tuple[int, ...], ...] = ()) -> "Weights":
        blocks = (replace(b, tensors={name: change(t) for name, t in b.tensors.items()}) for b in self.blocks)
        return Weights(tuple(blocks), keys)


@dataclass(frozen=True)
class BackboneShape:
    """The facts about a backbone that a method needs to make weights for it."""

    family: str
    """Name of the model family, for messages."""
    width: int
    """Hidden size, the same at every site."""
    sites: tuple[Site, ...]
    """All sites, encoder before decoder."""
    placements: tuple[str, ...]
    """The placements that the family supports."""
    projections: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Input and output size of the linear layers that blocks can act on, by name."""
    kv_width: int = 0
    """Size of a token's keys in self-attention, over all heads; 0 where blocks cannot add keys and values."""

    @property
    def stacks(self) -> tuple[str, ...]:
        """Return ``encoder``, ``decoder`` or both, in the order of computation."""
        return tuple(dict.fromkeys(site.stack for site in self.sites))

    def with_targets(self, targets: str | Sequence[str]) -> "BackboneShape":
        """Return the shape with some of its linear layers: a name, several, or ``all-linear``.

        Raises:
            BackboneError: It has no linear layer of a name.
        """
        known = list(self.projections)
        names = known if targets == "all-linear" else [targets] if isinstance(targets, str) else targets
        for name in names:
            if name not in known:
                raise BackboneError(
                    f"method.targets: {self.family} has no linear layer {name!r}. {suggest(name, known)} "
                    "Or write all-linear."
                )
        return replace(self, projections={name: self.projections[name] for name in known if name in names})

    def choose_placement(self, wanted: str | None, preferred: Sequence[str]) -> str:
        """Return the wanted placement, or the first preferred one that the family supports."""
        for placement in [wanted] if wanted else preferred:
            if placement in self.placements:
                return placement
        raise BackboneError(
            f"method.placement: {self.family} has no placement {wanted or preferred[0]!r}. "
            f"{suggest(wanted or preferred[0], self.placements)}"
            " Pre-norm families have no placement 'norm'; use 'layer', which is Pfeiffer's formula there."
        )
