"""Random choices that belong to a key: the same on every machine, whatever was drawn before."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from polyloom.data.shuffle import random_uint64

T = TypeVar("T")
_AT_ONCE = 48


class Dice:
    """The choices of a key, one after another."""

    def __init__(self, *key: int) -> None:
        self._numbers = _numbers(key)

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``."""
        return next(self._numbers) % count

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""
        return self.below(100) < percent

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]


def _numbers(key: tuple[int, ...]) -> Iterator[int]:
    count = 0
    while True:
        yield from random_uint64((*key, count), _AT_ONCE).tolist()
        count += 1
