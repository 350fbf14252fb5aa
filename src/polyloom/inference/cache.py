"""Weights made before: those of the conditions that were used last, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Sequence

import torch

from polyloom.conditions import Condition
from polyloom.model import Model
from polyloom.weights import Weights


class WeightCache:
    """A model's weights by condition.

    Whatever changes the parameters of its method makes it forget everything. In training nothing is kept: there weights
    may be random, and carry gradients.

    Args:
        model: Whose method makes the weights.
        max_bytes: How much is kept; what was used longest ago goes first.
    """

    def __init__(self, model: Model, *, max_bytes: int = 256 << 20) -> None:
        self.model, self.method, self.max_bytes = model, model.method, max_bytes
        self._kept: OrderedDict[Condition, Weights] = OrderedDict()
        self._version: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """How much is kept now."""
        return sum(weights.num_bytes() for weights in self._kept.values())

    def rows(self, conditions: Sequence[Condition]) -> Weights:
        """The weights of a batch, laid out for its rows; those not kept are made in one go."""
        if self.method.training:
            return self.model.weights(conditions)
        self._forget_if_changed()
        distinct = {condition: number for number, condition in enumerate(dict.fromkeys(conditions))}
        found = {c: self._kept.pop(c) for c in distinct if c in self._kept}
        if missing := [condition for condition in distinct if condition not in found]:
            with torch.no_grad():
                made = self.method.weights(missing)
            found |= {c: made.alone(number) for number, c in enumerate(missing)}
        self._kept |= found  # behind all others
        excess = self.num_bytes - self.max_bytes
        while self._kept and excess > 0:
            excess -= self._kept.popitem(last=False)[1].num_bytes()
        together = Weights.cat([found[condition] for condition in distinct])
        return together.for_rows(torch.tensor([distinct[c] for c in conditions], device=self._device()))

    def _forget_if_changed(self) -> None:
        version = tuple(n for p in self.method.parameters() for n in (id(p), p.data_ptr(), p._version))  # noqa: SLF001
        if version != self._version:
            self._kept.clear()
            self._version = version

    def _device(self) -> torch.device:
        return next(self.method.parameters(), torch.empty(0)).device
