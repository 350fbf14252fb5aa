"""Products of test cases: CI runs as many as it takes for all pairs to meet, the nightly run takes them all."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from typing import Any

import pytest

Case = tuple[Any, ...]


def pairs(*factors: Hashable) -> set[Hashable]:
    """Every two factors of a case, with their positions."""
    return set(combinations(enumerate(factors), 2))


def covering(every: Iterable[Case], facts: Callable[[Case], set[Hashable]], *, name: Callable[[Case], str]):
    """Mark all cases as nightly but some that show every fact between them.

    The cases are chosen greedily. Of two that show equally many new facts, the one whose first factor was chosen less
    often is taken, so that no factor stands for all others.

    Args:
        every: The product.
        facts: What a case shows, such as `pairs` of its factors.
        name: The id of a case.

    Returns:
        The whole product in its order, as values for `pytest.mark.parametrize`.
    """
    shown = [(case, facts(case)) for case in every]
    missing: set[Hashable] = set().union(*(new for _, new in shown))
    chosen: list[str] = []
    used: Counter[Hashable] = Counter()
    while missing:
        best, new = max(shown, key=lambda case: (len(missing & case[1]), -used[case[0][0]]))
        missing -= new
        used[best[0]] += 1
        chosen.append(name(best))
    nightly = pytest.mark.nightly
    return [pytest.param(case, id=name(case), marks=() if name(case) in chosen else nightly) for case, _ in shown]
