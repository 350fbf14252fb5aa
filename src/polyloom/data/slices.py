"""Parse the part of a corpus after its name: ``[:20]``, ``[10:20]``, ``[<=20]``, ``[random:20]``, ``[random:20:1]``."""

import re
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from polyloom.data.shuffle import random_uint64
from polyloom.errors import DataError

T = TypeVar("T")

_SLICE = re.compile(r"\[(\d*):(\d*)\]$")
_AT_MOST = re.compile(r"\[<=(\d+)\]$")
_SAMPLE = re.compile(r"\[random:(\d+)(?::(\d+))?\]$")
_HOW = (
    "Write [:20], [10:20] or [10:], counted from 0; [<=20] for at most twenty; [random:20] for twenty random examples, "
    "[random:20:1] for others. A slice may follow [random:…], not precede it."
)
_KEY = 0x5A3B1E  # keeps these numbers apart from those of other uses of a seed
_BLOCK = 4096


class Sample(NamedTuple):
    """A random choice of examples, without replacement.

    Every example has a random number, which depends on the seed and its position alone; those with the smallest numbers
    are chosen. So the choice is the same on every machine, and a smaller one is part of a larger one.

    Attributes:
        size: Number of examples.
        seed: The seed; it has nothing to do with that of a run.
    """

    size: int
    seed: int = 0

    def of(self, examples: Iterable[T]) -> list[T]:
        """Choose among examples and keep their order; if there are too few, return all of them."""
        # A heap of `size` entries, so that a corpus of any length is read once in bounded memory. With the position
        # behind the number, two equal numbers never compare the examples themselves.
        chosen = nsmallest(self.size, zip(_numbers(self.seed), count(), examples, strict=False))
        return [example for _, _, example in sorted(chosen, key=lambda entry: entry[1])]


class Slice(NamedTuple):
    """A part of a corpus: a random choice, if there is one, and a range of what it leaves, which may be shorter."""

    sample: Sample | None = None
    start: int = 0
    stop: int | None = None
    at_most: bool = False


def parse_slice(name: str) -> tuple[str, Slice]:
    """Split the name of a corpus into the name of the whole and the slice."""
    bare, start, stop, sample = name, 0, None, None
    if at_most := _AT_MOST.search(bare):
        bare, stop = bare[: at_most.start()], int(at_most[1])
        if not stop:
            raise DataError(name, None, f"the slice is empty. {_HOW}")
    elif match := _SLICE.search(bare):
        start, stop = int(match[1] or 0), int(match[2]) if match[2] else None
        if stop is not None and stop <= start:
            raise DataError(name, None, f"the slice is empty. {_HOW}")
        bare = bare[: match.start()]
    if match := _SAMPLE.search(bare):
        sample = Sample(int(match[1]), int(match[2] or 0))
        if not sample.size:
            raise DataError(name, None, f"the slice is empty. {_HOW}")
        bare = bare[: match.start()]
    if bare.endswith("]") and not Path(bare).exists():
        raise DataError(name, None, f"not a slice. {_HOW}")
    return bare, Slice(sample, start, stop, at_most=at_most is not None)


def _numbers(seed: int) -> Iterator[int]:
    """Yield one random number after another."""
    for block in count():
        yield from random_uint64((_KEY, seed, block), _BLOCK).tolist()
