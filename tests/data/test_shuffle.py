"""Permutations by key: each value once, no pattern, the same for ever."""

from collections import Counter

import numpy as np
import pytest

from polyloom.data.shuffle import _digest, generator, permuted, random_uint64

GOLDEN_TEN = [2, 5, 0, 8, 6, 1, 9, 7, 3, 4]
GOLDEN_LARGE = [8294307447, 2573903451, 8262806209]
GOLDEN_NUMBERS = [2300127805321787183, 6572524504470555141, 8057321339860252020]


def whole(size, *key):
    return permuted(np.arange(size), size, key)


def chi_square_is_plausible(counts, expected):
    """Within five standard deviations of its mean: a sound shuffle fails once in millions of keys."""
    freedom = counts.size - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_every_size_up_to_two_thousand_is_a_permutation():
    for size in range(1, 2001):
        assert np.array_equal(np.sort(whole(size, 1, size)), np.arange(size)), size


@pytest.mark.parametrize("size", [4**8 - 1, 4**8, 4**8 + 1, 999_983, 1_000_000])
def test_large_sizes_are_permutations(size):
    assert np.array_equal(np.sort(whole(size, 7)), np.arange(size))


@pytest.mark.parametrize("size", [2**31 + 11, 10**12, 2**62 - 1])
def test_places_of_huge_permutations_are_distinct_and_inside(size):
    places = np.unique(generator((size,)).integers(0, size, 20_000))
    values = permuted(places, size, (3,))
    assert np.unique(values).size == places.size
    assert values.min() >= 0
    assert values.max() < size


def test_a_place_has_the_same_value_whatever_else_is_asked_for():
    expected = whole(1000, 5, 0)
    for places in ([0], [999, 3, 3], [], range(500, 600)):
        indices = np.array(places, dtype=np.int64)
        assert np.array_equal(permuted(indices, 1000, (5, 0)), expected[indices])


def test_values_never_change():
    assert whole(10, 0).tolist() == GOLDEN_TEN
    assert permuted(np.array([0, 1, 10**9]), 10**10, (1, -2, 2**70)).tolist() == GOLDEN_LARGE
    assert random_uint64((1, 2), 3).tolist() == GOLDEN_NUMBERS


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_a_few_are_equally_likely(size):
    orders = Counter(tuple(whole(size, key).tolist()) for key in range(10_000))
    counts = np.array(list(orders.values()))
    assert counts.size == {2: 2, 3: 6, 4: 24, 5: 120}[size]
    assert chi_square_is_plausible(counts, 10_000 / counts.size)


@pytest.mark.parametrize("size", [7, 100, 257, 300])
def test_every_value_is_equally_likely_at_every_place(size):
    keys = 4000
    counts = np.zeros((size, size))
    for key in range(keys):
        counts[np.arange(size), whole(size, 11, key)] += 1
    # Rows and columns have fixed sums, which leaves (size - 1)² degrees of freedom.
    chi_square = ((counts - keys / size) ** 2 / (keys / size)).sum()
    freedom = (size - 1) ** 2
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [1000, 65_536, 100_000])
def test_passes_are_not_correlated_with_one_another_nor_with_the_natural_order(size):
    first, second = whole(size, 1, 2, 0), whole(size, 1, 2, 1)
    limit = 5 / np.sqrt(size)
    for one, other in [(first, second), (first, np.arange(size)), (first[:-1], first[1:]), (first[:-2], first[2:])]:
        assert abs(np.corrcoef(one, other)[0, 1]) < limit
    assert (first == second).sum() < 10, "about one place in common"
    steps = np.diff(first) % 16
    assert chi_square_is_plausible(np.bincount(steps, minlength=16), steps.size / 16)


def test_places_outside_are_refused():
    for places in ([-1], [10], [0, 11]):
        with pytest.raises(IndexError, match="of a permutation of 10"):
            permuted(np.array(places), 10, (0,))


def test_keys_are_read_as_lists_of_numbers():
    assert not np.array_equal(whole(100, 1, 23), whole(100, 12, 3))
    assert not np.array_equal(whole(100, 1), whole(100, 1, 0))
    assert not np.array_equal(random_uint64((1,), 4), random_uint64((-1,), 4))


def test_numbers_of_a_key_come_in_one_order_however_many_are_taken():
    assert np.array_equal(random_uint64((9,), 100)[:7], random_uint64((9,), 7))
    assert np.array_equal(generator((9,)).random(5), generator((9,)).random(5))


@pytest.mark.parametrize("key", [(0,), (2**63 - 1,), (3, -1, 7)])
def test_numbers_are_those_of_philox_with_the_key(key):
    expected = np.random.Philox(key=int.from_bytes(_digest(key)[:16], "little")).random_raw(9)
    assert random_uint64(key, 9).tolist() == expected.tolist()
