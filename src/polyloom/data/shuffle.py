"""Generate permutations and random numbers from a key, without state, at a constant cost per value.

The values must never change, because interrupted runs continue with them; golden tests pin them.
"""

import math
from hashlib import blake2b

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Key = tuple[int, ...]
Integers = NDArray[np.int64]

_SMALL = 256
_ROUNDS = 6
_MIX = [np.uint64(number) for number in (30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31, 1)]


def permuted(indices: Integers, size: int, key: Key) -> Integers:
    """Return some values of the pseudo-random permutation of ``range(size)`` that belongs to a key.

    A Feistel network whose halves count to about the square root of the size (Black and Rogaway 2002), so that its
    domain is hardly larger than `size`; a value outside is permuted again until it falls inside. Small sizes are
    shuffled directly: a network of so few values does not reach all orders equally often.
    """
    if indices.size and not 0 <= indices.min() <= indices.max() < size:
        raise IndexError(f"places {indices.min()} to {indices.max()} of a permutation of {size}")
    if size <= _SMALL:
        return np.argsort(random_uint64(key, size), kind="stable")[indices]
    high = math.isqrt(size - 1) + 1
    low = -(-size // high)  # high · low is the size of the domain, at least `size`
    round_keys = np.frombuffer(_digest(key), dtype="<u8")[:_ROUNDS]
    values = _feistel(indices.astype(np.uint64), high, low, round_keys)
    # Cycle walking: the network permutes the whole domain, so a value that starts inside comes back inside.
    while (outside := np.flatnonzero(values >= size)).size:
        values[outside] = _feistel(values[outside], high, low, round_keys)
    return values.astype(np.int64)


def random_uint64(key: Key, count: int) -> NDArray[np.uint64]:
    """Return random numbers; the first ones do not depend on how many follow."""
    return _philox(key).random_raw(count)


def generator(key: Key) -> np.random.Generator:
    """Return NumPy's generator for a key."""
    return np.random.Generator(_philox(key))


def _feistel(values: NDArray[np.uint64], high: int, low: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Permute values below high · low. Each round changes one half by a function of the other, which can be undone."""
    num_left, num_right = np.uint64(high), np.uint64(low)
    left, right = np.divmod(values, num_right)
    for left_key, right_key in round_keys.reshape(-1, 2):
        left = (left + _mix(right + left_key)) % num_left
        right = (right + _mix(left + right_key)) % num_right
    return left * num_right + right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64 without its last bit, so that adding a small number cannot overflow."""
    shift, factor, shift_2, factor_2, shift_3, last = _MIX
    values = (values ^ (values >> shift)) * factor
    values = (values ^ (values >> shift_2)) * factor_2
    return (values ^ (values >> shift_3)) >> last


class _PhiloxKey(ISeedSequence):
    """Gives a key to Philox, whose argument ``key`` would first ask the system for a random one."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:  # noqa: ARG002
        return self._words


def _philox(key: Key) -> np.random.Philox:
    # A key of Philox has two words of 64 bits.
    return np.random.Philox(_PhiloxKey(np.frombuffer(_digest(key), "<u8", 2)))  # type: ignore[arg-type]


def _digest(key: Key) -> bytes:
    return blake2b(",".join(map(str, key)).encode(), digest_size=64).digest()
