"""The order of a dataset: each block is used up before the next is read, and the draws of a unit are as counted."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyloom.data.order import DRAWS_PER_UNIT, RowStream, TokenStream
from tests.data.in_memory import InMemory


def lengths_of(size, seed=0):
    return np.minimum(np.random.default_rng(seed).geometric(1 / 30, size), 400)


def epoch_of(stream, epoch=0, key=(1, 2)):
    draws = range(round(epoch * stream.draws_per_epoch), round((epoch + 1) * stream.draws_per_epoch))
    return [stream.take(draw, key) - epoch * stream.size for draw in draws]


def changes(blocks):
    return sum(a != b for a, b in itertools.pairwise(blocks))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 900), block=st.integers(1, 300), rows=st.sampled_from([1, 3, 8, 32]))
def test_every_block_is_used_up_before_the_next_one_is_read(size, block, rows):
    stream = RowStream(InMemory(np.ones(size), block), rows)
    positions = np.concatenate([stream.take(draw, (7,)) for draw in range(-(-3 * size // rows))])[: 3 * size]
    for epoch, found in enumerate(positions.reshape(3, size) - size * np.arange(3)[:, None]):
        assert sorted(found) == list(range(size)), epoch
        assert changes(found // block) == -(-size // block) - 1


def test_blocks_come_in_another_order_in_every_epoch_and_so_do_their_rows():
    stream = RowStream(InMemory(np.ones(1000), 90), 10)
    epochs = [np.concatenate(epoch_of(stream, epoch)) for epoch in range(4)]
    order = [list(dict.fromkeys((epoch // 90).tolist())) for epoch in epochs]
    assert len(set(map(tuple, order))) == 4
    assert len({blocks.index(11) for blocks in order}) > 1, "the last block, which is shorter, does not come last"
    inside = [[row for row in epoch if row // 90 == 3] for epoch in epochs]
    assert len(set(map(tuple, inside))) == 4


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 900), block=st.integers(1, 300), budget=st.integers(1, 3000), seed=st.integers(0, 99))
def test_units_have_as_many_draws_as_their_index_says(size, block, budget, seed):
    data = InMemory(lengths_of(size, seed), block)
    stream = TokenStream(data, budget)
    found = epoch_of(stream, epoch=2)
    assert sorted(np.concatenate(found)) == list(range(size))
    for rows in found:
        longest = data.all[rows].max()
        assert longest * len(rows) <= budget or len(rows) == 1


def test_a_unit_is_read_once_per_epoch_and_its_blocks_lie_side_by_side():
    data = InMemory(lengths_of(20_000), 10)
    stream = TokenStream(data, 600)
    assert stream.blocks == pytest.approx(DRAWS_PER_UNIT * 600 / (10 * 30), rel=0.2)
    epoch_of(stream)
    assert sorted(data.read) == [(first, min(first + stream.blocks, 2000)) for first in range(0, 2000, stream.blocks)]
    assert sorted(data.read) != data.read, "units are shuffled"


@pytest.mark.parametrize("budget", [600, 6000])
def test_little_of_a_draw_is_padding(budget):
    data = InMemory(lengths_of(200 * budget), 1000)
    filled = [data.all[rows].sum() / (data.all[rows].max() * len(rows)) for rows in epoch_of(TokenStream(data, budget))]
    used = [data.all[rows].sum() / budget for rows in epoch_of(TokenStream(data, budget))]
    assert np.mean(filled) > 0.85
    assert np.mean(used) > 0.8


def test_what_is_held_is_a_count_of_units():
    data = InMemory(lengths_of(100_000), 100)
    stream = TokenStream(data, 600)
    rows = len(stream.take(0, (1,)))
    arrays = [value for value in vars(stream).values() if isinstance(value, np.ndarray)]
    arrays += [*stream._epoch[1:], *stream._unit[1:]]
    assert max(map(len, arrays)) <= 2_000, rows
