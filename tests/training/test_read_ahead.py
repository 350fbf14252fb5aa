"""Batches made in advance are those of their steps, in any number of threads, and errors come at their step."""

import threading
import time

import pytest

from polyloom.training.loop import ReadAhead


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_every_number_has_its_own_result(ahead, threads):
    with ReadAhead(lambda number: number**2, ahead=ahead, stop=50, threads=threads) as made:
        assert [made.get(number) for number in range(7, 50)] == [number**2 for number in range(7, 50)]


def test_no_more_is_made_than_is_asked_for_and_each_once():
    calls: list[int] = []
    with ReadAhead(calls.append, ahead=3, stop=8) as made:
        made.get(0)
        assert set(made._results) == {1, 2, 3}
        for number in range(1, 8):
            made.get(number)
    assert calls == list(range(8))


def test_the_next_results_are_made_while_the_last_one_is_used():
    begun = threading.Event()
    with ReadAhead(lambda number: begun.set() if number == 1 else None, ahead=1, stop=2) as made:
        made.get(0)
        assert begun.wait(10)


def test_an_error_comes_at_its_number_and_not_before():
    def make(number):
        if number == 3:
            raise ValueError("block 3 is damaged")
        return number

    with ReadAhead(make, ahead=5, stop=10) as made:
        assert [made.get(number) for number in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="block 3"):
            made.get(3)
        assert made.get(4) == 4


def test_work_that_has_not_begun_is_dropped_at_the_end():
    begun = []

    def make(number):
        begun.append(number)
        time.sleep(0.05)

    with ReadAhead(make, ahead=100, stop=200) as made:
        made.get(0)
    assert len(begun) < 10
