"""Compute weights as they are used for predictions."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyloom.methods.base import Method


@contextmanager
def eval_mode(method: Method) -> Iterator[None]:
    """Put a method into evaluation mode, without gradients. In training mode weights may be random (dropout, noise)."""
    was_training = method.training
    method.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        method.train(was_training)
