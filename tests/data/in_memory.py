"""Datasets of which there is nothing but the lengths of their rows."""

import numpy as np


class InMemory:
    """What `data.order` needs to know of a dataset, from an array of lengths."""

    def __init__(self, lengths, rows_per_block=None):
        self.all = np.asarray(lengths, dtype=np.int32)
        self.rows_per_block = rows_per_block or max(1, len(self.all))
        self.num_blocks = -(-len(self.all) // self.rows_per_block)
        self.longest = np.unique(-(-self.all // 8) * 8).astype(np.int64)
        self.longest = np.array([self.all[self.all <= bound].max() for bound in self.longest], dtype=np.int64)
        self.read: list[tuple[int, int]] = []

    def __len__(self):
        return len(self.all)

    def bucket_counts(self):
        blocks = np.split(self.all, range(self.rows_per_block, len(self.all), self.rows_per_block))
        return np.array(
            [np.bincount(np.searchsorted(self.longest, block), minlength=len(self.longest)) for block in blocks],
            dtype=np.uint32,
        )

    def lengths(self, first, last):
        self.read.append((first, last))
        return self.all[first * self.rows_per_block : last * self.rows_per_block]
