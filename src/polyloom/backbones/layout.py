"""Lay weights out by place and site for the hooks; in a search, once for all rows that share weights."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyloom.nn.blocks import ATTENTION, BLOCKS, BlockKind
from polyloom.weights import Site, Weights


class Groups(NamedTuple):
    """Rows that share weights, in groups of one size, so that a product reads the weights of a group once.

    Attributes:
        members_N: The rows of all groups, one group after the other. The last row of a group stands there again until
            the group is full.
        places_B: Where each row stands in `members_N`.
        num_groups: Number of groups.
    """

    members_N: Tensor
    places_B: Tensor
    num_groups: int

    def gather(self, hidden_BTD: Tensor) -> Tensor:
        """Put the rows of each group one behind the other, as if they were one row."""
        return hidden_BTD.index_select(0, self.members_N).view(self.num_groups, -1, hidden_BTD.shape[2])

    def scatter(self, grouped: Tensor) -> Tensor:
        """Undo `gather`."""
        return grouped.reshape(len(self.members_N), -1, grouped.shape[2]).index_select(0, self.places_B)


class PlacedBlock(NamedTuple):
    """A block at one place: its kind, its tensors there, and the rows that each set of them is for, if not one each."""

    kind: BlockKind
    tensors: Mapping[str, Tensor]
    groups: Groups | None = None

    def __call__(self, output_BTE: Tensor, input_BTD: Tensor, *, place: str) -> Tensor:
        """Apply the block, as `BlockKind.apply` describes."""
        if self.groups is None:
            return self.kind.apply(output_BTE, input_BTD, self.tensors, place=place)
        output = self.groups.gather(output_BTE)
        given = output if input_BTD is output_BTE else self.groups.gather(input_BTD)
        return self.groups.scatter(self.kind.apply(output, given, self.tensors, place=place))


class Layout(NamedTuple):
    """Weights of a batch, ready for hooks.

    Attributes:
        at: Blocks by place and site, in the order in which they are applied.
        num_rows: Number of rows of the batch.
    """

    at: Mapping[tuple[str, Site], list[PlacedBlock]]
    num_rows: int


def lay_out(weights: Weights, *, num_rows: int, search: bool = False) -> Layout:
    """Lay out the weights of a batch.

    Args:
        weights: One shared set, or one set per row (`Weights.for_rows`).
        num_rows: Number of rows.
        search: Whether an encoder-decoder reads them token by token. If two rows or more share the weights of its
            decoder on average, these are then copied, once for the rows that share them, in the order in which products
            of single tokens read them. With fewer, the copies would cost more than a short text gains.
    """
    at: dict[tuple[str, Site], list[PlacedBlock]] = {}
    keys = weights.decoder_keys if search and len(weights.decoder_keys) == num_rows else ()
    rows_N, groups = _group(keys, weights.device) if 0 < 2 * len(set(keys)) <= num_rows else (None, None)
    for block in weights.blocks:
        kind, by_site = BLOCKS[block.kind], block.by_site()
        shared = next(iter(block.tensors.values())).shape[0] == 1
        for place, index in kind.places(block):
            site, tensors = block.sites[index], by_site[index]
            if rows_N is None or shared or site.stack != "decoder" or place == ATTENTION:
                placed = PlacedBlock(kind, {name: _contiguous_bf16(tensor) for name, tensor in tensors.items()})
            else:
                copies = {name: _for_tokens(tensor, rows_N) for name, tensor in tensors.items()}
                placed = PlacedBlock(kind, copies, groups)
            at.setdefault((place, site), []).append(placed)
    return Layout(at, num_rows)


def _group(keys: Sequence[Hashable], device: torch.device) -> tuple[Tensor, Groups | None]:
    """Group rows by their keys. Return a row of each group, and no groups if all rows have the same key."""
    by_key: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        by_key.setdefault(key, []).append(row)
    if len(by_key) == 1:
        return torch.zeros(1, dtype=torch.long, device=device), None
    size = -(-len(keys) // len(by_key))
    groups = [rows[start : start + size] for rows in by_key.values() for start in range(0, len(rows), size)]
    members = [row for rows in groups for row in rows + rows[-1:] * (size - len(rows))]
    indices = ([rows[0] for rows in groups], members, [members.index(row) for row in range(len(keys))])
    rows_N, members_N, places_B = (torch.tensor(index, device=device) for index in indices)
    return rows_N, Groups(members_N, places_B, len(groups))


def _contiguous_bf16(tensor: Tensor) -> Tensor:
    """Make a bf16 tensor contiguous: in bf16, products of strided matrices take five times as long."""
    return tensor.contiguous() if tensor.dtype == torch.bfloat16 else tensor


def _for_tokens(tensor: Tensor, rows_N: Tensor) -> Tensor:
    """Copy the tensors of some rows, without row dimension if it is one row.

    A product of one token with a matrix that has more rows than columns is faster if its columns are side by side.
    """
    tall = tensor.dim() == 3 and tensor.shape[1] > tensor.shape[2] and tensor.dtype != torch.bfloat16
    chosen = (tensor.transpose(1, 2) if tall else tensor).index_select(0, rows_N)
    chosen = chosen.transpose(1, 2) if tall else chosen
    return chosen[0] if len(rows_N) == 1 else chosen
