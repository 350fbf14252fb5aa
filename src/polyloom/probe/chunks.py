"""Compute the weights of many conditions, as many at a time as fit into memory."""

from collections.abc import Sequence

from polyloom.conditions import Condition
from polyloom.methods.base import Method

CHUNK_BYTES = 256 << 20  # of weights in float64 that are in memory at a time


def chunks(method: Method, conditions: Sequence[Condition], *, max_bytes: int = CHUNK_BYTES) -> list[slice]:
    """Divide conditions into slices whose weights fit into a number of bytes; a slice has at least one condition."""
    size = 8 * method.weights(conditions[:1]).num_parameters()
    step = max(1, max_bytes // max(1, size))
    return [slice(start, start + step) for start in range(0, len(conditions), step)]
