"""Make random choices from a key: the same on every machine, whatever was drawn before."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from polyloom.data.shuffle import random_uint64

T = TypeVar("T")
_AT_ONCE = 48


class Dice:
    """A sequence of random choices that belongs to a key."""

    def __init__(self, *key: int) -> None:
        self._numbers = _numbers(key)

    def below(self, count: int) -> int:
        """Draw a number from 0 to ``count - 1``."""
        return next(self._numbers) % count  # of 64 bits: the bias of the remainder is below 2^-50

    def chance(self, percent: int) -> bool:
        """Return true with a probability in percent."""
        return self.below(100) < percent

    def pick(self, options: Sequence[T]) -> T:
        """Draw one of the options."""
        return options[self.below(len(options))]


def _numbers(key: tuple[int, ...]) -> Iterator[int]:
    # In blocks, because a call of the generator for each number would be slow.
    count = 0
    while True:
        yield from random_uint64((*key, count), _AT_ONCE).tolist()
        count += 1
