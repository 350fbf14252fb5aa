"""Lay weights out by place and site for the hooks; in a search, once for all rows that share weights."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polyloom.nn.blocks import ATTENTION, BLOCKS, BlockKind
from polyloom.weights import Site, Weights


class Groups(NamedTuple):
    """Rows that share weights, in groups of one size, so that a product reads the weights of a group once."""

    members_N: Tensor
    """The rows of all groups, group by group. The last row of a group is repeated until the group is full."""
    positions_B: Tensor
    """The position of each row in `members_N`."""
    num_groups: int

    def gather(self, hidden_BTD: Tensor) -> Tensor:
        """Put the rows of each group one behind the other, as if they were one row."""
        return hidden_BTD.index_select(0, self.members_N).view(self.num_groups, -1, hidden_BTD.shape[2])

    def scatter(self, grouped: Tensor) -> Tensor:
        """Undo `gather`."""
        return grouped.reshape(len(self.members_N), -1, grouped.shape[2]).index_select(0, self.positions_B)


class PlacedBlock(NamedTuple):
    """A block at one place: its kind, its tensors there, and the rows that each set of them is for, if not one each."""

    kind: BlockKind
    tensors: Mapping[str, Tensor]
    groups: Groups | None = None

    def __call__(self, output_BTE: Tensor, input_BTD: Tensor, *, place: str) -> Tensor:
        """Apply the block, as `BlockKind.apply` describes."""
        if self.groups is None:
            return self.kind.apply(output_BTE, input_BTD, self.tensors, place=place)
        grouped_output = self.groups.gather(output_BTE)
        grouped_input = grouped_output if input_BTD is output_BTE else self.groups.gather(input_BTD)
        return self.groups.scatter(self.kind.apply(grouped_output, grouped_input, self.tensors, place=place))


class Layout(NamedTuple):
    """Weights of a batch, ready for hooks."""

    at: Mapping[tuple[str, Site], list[PlacedBlock]]
    """Blocks by place and site, in the order in which they are applied."""
    num_rows: int
    """Number of rows of the batch."""


def lay_out(weights: Weights, *, num_rows: int, search: bool = False) -> Layout:
    """Lay out the weights of a batch.

    Args:
        weights: One shared set, or one set per row (`Weights.for_rows`).
        num_rows: Number of rows.
        search: Whether an encoder-decoder reads them token by token. If two rows or more share the weights of its
            decoder on average, these are then copied, once for the rows that share them, in the order in which products
            of single tokens read them. With fewer, the copies would cost more than a short text gains.
    """
    # Only what is generated token by token gains from groups, and only if rows share weights at all.
    keys = weights.decoder_keys if search and len(weights.decoder_keys) == num_rows else ()
    rows_N, groups = _group(keys, weights.device) if 0 < 2 * len(set(keys)) <= num_rows else (None, None)

    at: dict[tuple[str, Site], list[PlacedBlock]] = {}
    for block in weights.blocks:
        kind, by_site = BLOCKS[block.kind], block.by_site()
        shared = all(tensor.shape[0] == 1 for tensor in block.tensors.values())
        for place, index in kind.places(block):
            site, tensors = block.sites[index], by_site[index]
            # Keys and values are joined with those of each row's text, so groups would not save anything there.
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

    # Groups have the mean size, rounded up: a key with more rows gets several groups, the last one of a key is filled.
    size = -(-len(keys) // len(by_key))
    groups = [rows[start : start + size] for rows in by_key.values() for start in range(0, len(rows), size)]
    members = [row for rows in groups for row in rows + rows[-1:] * (size - len(rows))]
    rows_N = torch.tensor([rows[0] for rows in groups], device=device)
    members_N = torch.tensor(members, device=device)
    positions_B = torch.tensor([members.index(row) for row in range(len(keys))], device=device)
    return rows_N, Groups(members_N, positions_B, len(groups))


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
