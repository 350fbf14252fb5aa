"""The weights of many conditions, as many at a time as fit into memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from polyloom.conditions import Condition
from polyloom.methods.base import Method

CHUNK_BYTES = 256 << 20  # of weights in float64 that are held at a time


@contextmanager
def at_rest(method: Method) -> Iterator[None]:
    """Nothing random, nothing for a gradient."""
    was_training = method.training
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        method.train(was_training)


def chunks(method: Method, conditions: Sequence[Condition], *, max_bytes: int = CHUNK_BYTES) -> list[slice]:
    """Slices of the conditions whose weights fit into so many bytes; one condition at least."""
    size = 8 * method.weights(conditions[:1]).num_parameters()
    step = max(1, max_bytes // max(1, size))
    return [slice(start, start + step) for start in range(0, len(conditions), step)]
