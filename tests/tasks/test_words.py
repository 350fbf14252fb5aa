"""One vector per word, whatever the number of pieces and the length of the sentence."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyloom.tasks.nli import shorten
from polyloom.tasks.words import place_words, windows

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=80)


def sentence(counts: list[int]) -> dict[str, list[int]]:
    """Every piece has its own number, so that it can be told where a word was read."""
    return {"tokens": list(range(sum(counts))), "counts": counts, "reads": [c // 2 for c in counts]}


@settings(max_examples=300, deadline=None)
@given(COUNTS, st.integers(4, 40))
def test_windows_cover_every_word_and_fit(counts, room):
    cut = np.minimum(counts, room)
    found = windows(cut, room)
    assert {w for begin, end in found for w in range(begin, end)} == set(range(len(counts)))
    assert all(cut[begin:end].sum() <= room and end > begin for begin, end in found)
    assert all(a[0] < b[0] for a, b in pairwise(found))


@settings(max_examples=300, deadline=None)
@given(COUNTS, st.integers(4, 40))
def test_every_word_is_read_from_its_own_piece(counts, room):
    row = sentence(counts)
    contents, window_W, place_W = place_words(row, room)
    assert all(len(content) <= room for content in contents)
    firsts = np.cumsum(counts) - counts
    for w, count in enumerate(counts):
        read = contents[window_W[w]][place_W[w]]
        assert read == firsts[w] + min(row["reads"][w], min(count, room) - 1)


def test_a_sentence_that_fits_is_one_window():
    contents, window_W, place_W = place_words(sentence([2, 1, 3]), 6)
    assert contents == [[0, 1, 2, 3, 4, 5]]
    assert (window_W, place_W) == ([0, 0, 0], [1, 2, 4])


def test_words_in_a_long_sentence_are_read_where_they_see_most():
    counts = [1] * 100
    contents, window_W, place_W = place_words(sentence(counts), 20)
    for w in range(100):
        content, place = contents[window_W[w]], place_W[w]
        left = place if content[0] else 20
        right = len(content) - 1 - place if content[-1] != 99 else 20
        assert min(left, right) >= 4


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 4), (10, 2), (2, 10), (30, 30), (30, 5), (5, 30), (6, 5)])
def test_pairs_are_cut_from_the_longer_text(first, second):
    one, other = shorten(range(first), range(second), 10)
    assert len(one) + len(other) == min(first + second, 10)
    assert one == list(range(len(one)))
    assert other == list(range(len(other)))
    assert len(one) >= min(first, 5)
    assert len(other) >= min(second, 5)
