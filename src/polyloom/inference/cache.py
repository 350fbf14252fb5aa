"""Cache the weights of the conditions that were used last, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from polyloom.conditions import Condition
from polyloom.methods.base import Method
from polyloom.model import Model
from polyloom.weights import Weights

AHEAD = 8  # conditions of later batches whose weights are computed together with those of a batch
_optimizer_steps = 0  # of all optimizers in this process


def _count_step(*_: Any) -> None:
    global _optimizer_steps  # noqa: PLW0603
    _optimizer_steps += 1


register_optimizer_step_post_hook(_count_step)  # fused optimizers change parameters without counting it in the tensors


class WeightCache:
    """The weights of a model by condition.

    The cache is emptied when a parameter of the method changes, or any optimizer makes a step. In training nothing is
    cached: weights may be random there, and carry gradients.

    Args:
        model: The model whose method computes the weights.
        max_bytes: Size of the cache; the least recently used weights are removed first. Default: 256 MB.

    Attributes:
        num_computed: Number of conditions whose weights were computed so far.
    """

    def __init__(self, model: Model, *, max_bytes: int = 256 << 20) -> None:
        self.model, self.method, self.max_bytes = model, model.method, max_bytes
        self._kept: OrderedDict[Condition, Weights] = OrderedDict()
        self._version: tuple[int, ...] = ()
        self._bytes = 0
        self.num_computed = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, condition: Condition) -> bool:
        return condition in self._kept

    @property
    def num_bytes(self) -> int:
        """Size of the cached weights."""
        return self._bytes

    def rows(self, conditions: Sequence[Condition]) -> Weights:
        """Return the weights of a batch, one set per row; those that are not cached are computed in one call."""
        if self.method.training:
            return self.model.weights(conditions)
        self._clear_if_changed()
        distinct = dict.fromkeys(conditions)
        by_condition = {c: self._kept[c] for c in distinct if c in self._kept}
        if missing := [condition for condition in distinct if condition not in by_condition]:
            by_condition |= self._compute(missing)
        self._keep(by_condition)  # `by_condition` holds them even if the cache is smaller than a batch
        # Rows of one condition share a single set; otherwise each row has a set of its own.
        rows = conditions if len(distinct) > 1 else distinct
        return Weights.cat([by_condition[condition] for condition in rows])

    def prepare(self, conditions: Sequence[Condition], *, ahead: Sequence[Condition]) -> None:
        """Compute the weights of a batch, if some are missing, and with them some that are needed soon.

        A generated method computes many conditions in about the time of one, so the next batches wait for nothing.
        """
        if self.method.training:
            return
        self._clear_if_changed()
        if missing := [condition for condition in dict.fromkeys(conditions) if condition not in self._kept]:
            known = {*missing, *self._kept}
            soon = [condition for condition in dict.fromkeys(ahead) if condition not in known]
            # Those of the batch come last: if not all fit into the cache, the others are removed first.
            self._keep(self._compute([*soon[:AHEAD], *missing]))

    def _compute(self, missing: Sequence[Condition]) -> dict[Condition, Weights]:
        with torch.no_grad():
            computed = self.method.weights(missing)
        self.num_computed += len(missing)
        return {condition: computed.select(number) for number, condition in enumerate(missing)}

    def _keep(self, by_condition: dict[Condition, Weights]) -> None:
        """Keep weights as the last used; above `max_bytes` the least recently used ones are removed."""
        for condition, weights in by_condition.items():
            if condition not in self._kept:
                self._kept[condition] = weights
                self._bytes += weights.num_bytes()
            self._kept.move_to_end(condition)
        while self._kept and self._bytes > self.max_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].num_bytes()

    def _clear_if_changed(self) -> None:
        # A step of an optimizer may write parameters where torch does not count it; a loaded or moved parameter has
        # another object or address; anything else that writes to one raises its version.
        parts = (n for p in self.method.parameters() for n in (id(p), p.data_ptr(), _version(p)))
        version = (_optimizer_steps, *parts)
        if version != self._version:
            self.clear()
            self._version = version

    def clear(self) -> None:
        """Remove all weights."""
        self._kept.clear()
        self._bytes = 0


def _version(parameter: Tensor) -> int:
    """Return how often a tensor was changed in place; inference tensors do not count it, and do not change."""
    return 0 if parameter.is_inference() else parameter._version  # noqa: SLF001


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
