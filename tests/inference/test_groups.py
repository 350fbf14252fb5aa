"""Batches of rows of similar length: every row once, none over the budget, unless a row alone is."""

from hypothesis import given
from hypothesis import strategies as st

from polyloom.inference.predictor import group_by_length


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(1, 200))
def test_batches_keep_the_budget(lengths, tokens):
    groups = list(group_by_length(lengths, tokens=tokens))
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[position] for position in group)
        assert len(group) * longest <= tokens or len(group) == 1
