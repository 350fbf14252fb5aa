"""Lay out lists of different lengths as one tensor, and list the tokens to predict in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = Sequence[int] | NDArray[Any]


def joined(*parts: Integers) -> NDArray[np.int64]:
    """Return lists as one, any of which may be empty."""
    return np.concatenate(parts, dtype=np.int64, casting="unsafe")  # an empty list is one of floats for NumPy


def padded(rows: Sequence[Integers], value: int) -> Tensor:
    """Return lists as the rows of a tensor, with a value behind the shorter ones."""
    sizes = np.array([len(row) for row in rows])
    table = np.full((len(rows), sizes.max()), value, dtype=np.int64)
    table[np.arange(table.shape[1]) < sizes[:, None]] = joined(*rows)
    return torch.from_numpy(table)


def tokens_to_predict(labels_BT: Tensor, *, skipped: int = 0) -> dict[str, Tensor]:
    """Return the rows and places of all labels, and the labels; -1 stands where there is none.

    Call it on the host, when a batch is made. On a device the host would have to wait for their number, because it is
    the shape of a tensor.

    Args:
        labels_BT: The labels.
        skipped: Place of the hidden state that belongs to the first column.
    """
    row_N, place_N = (labels_BT >= 0).nonzero().T.contiguous()
    return {"row_N": row_N, "place_N": place_N + skipped, "labels_N": labels_BT[row_N, place_N]}
