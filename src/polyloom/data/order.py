"""The order of the examples of one dataset, epoch after epoch: blocks are permuted, then the rows inside them.

Rows were shuffled when the dataset was written, so those of a block are a random sample. A draw reads one block or a
few adjacent ones, and a block is used up before the next one is read: one read serves many draws. Memory grows with the
number of blocks, not of examples. Every permutation has a key of (seed, dataset, epoch, …), so the rows of a draw are a
function of its number alone.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyloom.data.blocks import Integers, Words
from polyloom.data.shuffle import Key, permuted, random_uint64

DRAWS_PER_UNIT = 64  # the more, the less padding; see `TokenStream`


class Rows(Protocol):
    """What the order needs to know of a dataset, see `EncodedDataset`."""

    rows_per_block: int
    num_blocks: int
    longest: Integers

    def __len__(self) -> int: ...

    def bucket_counts(self) -> NDArray[np.uint32]:
        """Return how many rows of each block are of each bucket of lengths."""

    def lengths(self, first: int, last: int) -> Words:
        """Return the lengths of the rows of the blocks from `first` to `last`, exclusive."""


class Stream(Protocol):
    """The examples of a dataset in the order of its draws."""

    @property
    def draws_per_epoch(self) -> float:
        """Number of draws of an epoch, which may be a fraction."""

    def take(self, draw: int, key: Key) -> Integers:
        """Return the positions of a draw's examples: row plus epoch times the size of the dataset."""


def make_stream(rows: Rows, rows_per_batch: int | None, tokens_per_batch: int | None, draws: int) -> Stream:
    """Return the order of a dataset in batches of several draws, by rows or by tokens."""
    if rows_per_batch is not None:
        return RowStream(rows, rows_per_batch // draws)
    assert tokens_per_batch is not None
    return TokenStream(rows, tokens_per_batch // draws)


class RowStream:
    """Draws of a fixed number of rows; a draw at the end of an epoch continues with the next epoch."""

    def __init__(self, rows: Rows, rows_per_draw: int) -> None:
        self.size, self.block, self.rows = len(rows), rows.rows_per_block, rows_per_draw
        self.draws_per_epoch = self.size / rows_per_draw

    def take(self, draw: int, key: Key) -> Integers:
        """Return the positions of a draw's examples."""
        begin, end = draw * self.rows, (draw + 1) * self.rows
        epochs = []
        for start in range(begin // self.size * self.size, end, self.size):  # where each epoch of the draw starts
            positions = np.arange(max(begin, start), min(end, start + self.size)) - start
            epochs.append(self._rows_at(positions, (*key, start // self.size)) + start)
        return np.concatenate(epochs)

    def _rows_at(self, positions: Integers, key: Key) -> Integers:
        """Return the rows at some positions of an epoch."""
        if self.size <= self.block:
            return permuted(positions, self.size, key)

        # The last block may be shorter than the others. A permutation of all blocks would shift the positions behind
        # it by an amount that depends on its place. So the short block gets a random place of its own, and only the
        # full ones are permuted, as if it were not there.
        full, rest = divmod(self.size, self.block)
        short_start = int(random_uint64((*key, -1), 1)[0]) % (full + 1) * self.block if rest else self.size
        in_short = (positions >= short_start) & (positions < short_start + rest)
        without_short = positions - np.where(positions >= short_start, rest, 0)
        blocks, within = np.divmod(without_short, self.block)
        blocks[~in_short] = permuted(blocks[~in_short], full, key)
        blocks[in_short], within[in_short] = full, positions[in_short] - short_start

        rows = np.empty_like(positions)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            size = rest if block == full else self.block
            rows[here] = block * self.block + permuted(within[here], size, (*key, block))
        return rows


class TokenStream:
    """Draws of rows of similar length, as many as fit the budget.

    A unit is a number of adjacent blocks, together of about 64 draws. Its rows are sorted by length and cut into draws,
    each epoch in another way: the more rows are sorted together, the more alike are those of a draw, and the less is
    padding. Units, and the draws of a unit, come in the order of a permutation. The index of blocks counts rows by
    length, so the number of draws of each unit is known before anything is read.
    """

    def __init__(self, rows: Rows, budget: int) -> None:
        self.data, self.size, self.budget = rows, len(rows), budget
        counts = rows.bucket_counts().astype(np.int64)
        tokens_per_block = float((counts.sum(0) * rows.longest).sum() / rows.num_blocks)
        self.blocks = min(rows.num_blocks, max(1, round(DRAWS_PER_UNIT * budget / tokens_per_block)))
        counts = np.add.reduceat(counts, np.arange(0, rows.num_blocks, self.blocks), axis=0)
        self.rows = np.maximum(1, budget // rows.longest)  # of a draw whose longest row is of each bucket
        self.draws = count_draws(counts, self.rows)
        self.draws_per_epoch = int(self.draws.sum())
        self._epoch: tuple[Key, Integers, Integers] = ((), self.draws, self.draws)  # the last result of `_units`
        self._unit: tuple[Key, Integers, Integers] = ((), self.draws, self.draws)  # and of `_rows`

    def take(self, draw: int, key: Key) -> Integers:
        """Return the positions of a draw's examples."""
        epoch, position = divmod(draw, self.draws_per_epoch)
        key = (*key, epoch)

        # Units have different numbers of draws: find the one that this draw falls into, and its place there.
        units, ends = self._units(key)
        place = int(np.searchsorted(ends, position, side="right"))
        unit = int(units[place])
        within = position - int(ends[place] - self.draws[unit])

        rows, starts = self._rows(unit, key)
        part = int(permuted(np.array([within]), int(self.draws[unit]), (*key, unit))[0])
        positions: Integers = rows[starts[part] : starts[part + 1]] + epoch * self.size
        return positions

    def _units(self, key: Key) -> tuple[Integers, Integers]:
        """Return the units in the order of an epoch, and how many draws there are up to the end of each."""
        cached, units, ends = self._epoch
        if cached != key:
            units = permuted(np.arange(len(self.draws)), len(self.draws), key)
            ends = np.cumsum(self.draws[units])
            self._epoch = (key, units, ends)  # in one assignment: other threads see all of it or nothing
        return units, ends

    def _rows(self, unit: int, key: Key) -> tuple[Integers, Integers]:
        """Return the rows of a unit from the longest to the shortest, and where each of its draws starts."""
        cached, rows, starts = self._unit
        if cached != (*key, unit):
            first = unit * self.blocks
            lengths = self.data.lengths(first, min(first + self.blocks, self.data.num_blocks))
            # Permuted first, then sorted stably by bucket: rows of one bucket meet other rows in every epoch.
            order = permuted(np.arange(len(lengths)), len(lengths), (*key, unit, 1))
            buckets = np.searchsorted(self.data.longest, lengths[order])
            by_length = np.argsort(-buckets, kind="stable")
            # The first row of a draw is its longest and decides how many fit, as in `count_draws`.
            cuts, buckets = [0], buckets[by_length]
            while cuts[-1] < len(buckets):
                cuts.append(min(cuts[-1] + int(self.rows[buckets[cuts[-1]]]), len(buckets)))
            rows, starts = order[by_length] + first * self.data.rows_per_block, np.array(cuts)
            self._unit = ((*key, unit), rows, starts)
        return rows, starts


def count_draws(counts_UH: Integers, rows_H: Integers) -> Integers:
    """Count the draws of units whose rows are taken from the longest to the shortest.

    Args:
        counts_UH: How many rows of each unit are of each bucket of lengths, from the shortest to the longest.
        rows_H: How many rows a draw has whose longest row is of each bucket.
    """
    draws_U, room_U = np.zeros((2, len(counts_UH)), np.int64)  # room in the last draw so far, for shorter rows
    for counts_U, rows in zip(counts_UH.T[::-1], rows_H[::-1], strict=True):
        # Rows of this bucket fill the last draw of longer rows first, then new draws of their own.
        left_U = np.maximum(0, counts_U - room_U)
        new_U = -(-left_U // rows)
        draws_U += new_U
        room_U = np.where(new_U, new_U * rows - left_U, room_U - (counts_U - left_U))
    return draws_U
