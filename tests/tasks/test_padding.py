"""Lists of any kind and length become rows of 64-bit integers, exactly."""

import numpy as np
import pytest
import torch

from polyloom.tasks.padding import joined, padded

LARGE = 2**31 - 1


def test_lists_and_arrays_are_padded_behind_their_end():
    found = padded([[LARGE, 2, 3], [], np.array([LARGE], dtype=np.int32), range(2)], -1)
    assert found.tolist() == [[LARGE, 2, 3], [-1, -1, -1], [LARGE, -1, -1], [0, 1, -1]]
    assert found.dtype == torch.long


@pytest.mark.parametrize("rows", [[[]], [[], []]])
def test_rows_may_all_be_empty(rows):
    assert padded(rows, 0).shape == (len(rows), 0)
    assert padded(rows, 0).dtype == torch.long


def test_lists_are_joined_without_going_through_floats():
    large = 2**62 + 1  # which no float is
    assert joined([], [large], np.array([large]), []).tolist() == [large, large]
