"""The queue is bounded, fair between callers, and no request waits for ever."""

import random
import threading
from dataclasses import dataclass, field
from itertools import count

import pytest

from polyloom.errors import OverloadedError
from polyloom.serve.queue import FairQueue

NUMBERS = count()


@dataclass(eq=False)
class Row:
    """As much of a request as a queue looks at."""

    tokens: int = 8
    caller: str = ""
    batched_with: str = "model"
    number: int = field(default_factory=lambda: next(NUMBERS))


def filled(*rows: Row, room: int = 10_000) -> FairQueue[Row]:
    queue = FairQueue[Row](room)
    for row in rows:
        queue.put(row)
    return queue


def take(queue: FairQueue[Row], tokens: int = 32) -> list[Row]:
    return queue.take(max_tokens=tokens, max_wait=0.0)


def test_a_batch_has_at_most_as_many_tokens_padding_included():
    draw = random.Random(0)
    queue = filled(*(Row(draw.randint(1, 40)) for _ in range(500)))
    while len(queue):
        batch = take(queue, tokens=64)
        assert len(batch) == 1 or len(batch) * max(row.tokens for row in batch) <= 64
    assert queue.tokens == 0


def test_the_oldest_request_is_always_next():
    rows = [Row(length) for length in (30, 2, 2, 2, 30, 2, 2)]
    queue = filled(*rows)
    assert rows[0] in take(queue, tokens=60)
    assert rows[1] in take(queue, tokens=60)
    assert len(queue) == 0


def test_a_caller_with_many_requests_does_not_delay_another():
    queue = filled(*(Row(caller="many") for _ in range(1000)))
    take(queue)
    queue.put(rare := Row(caller="rare"))
    assert rare in take(queue)


def test_callers_get_equal_shares():
    queue = filled(*(Row(caller="many") for _ in range(900)), *(Row(caller="few") for _ in range(100)))
    served = [row for _ in range(20) for row in take(queue)]
    assert sum(row.caller == "few" for row in served) == len(served) / 2


def test_a_caller_that_was_away_is_not_owed_anything():
    queue = filled(*(Row(caller="steady") for _ in range(400)))
    for _ in range(50):
        take(queue)
    for _ in range(100):
        queue.put(Row(caller="new"))
    served = [row for _ in range(10) for row in take(queue)]
    assert abs(sum(row.caller == "new" for row in served) - len(served) / 2) <= 4


def test_models_do_not_share_batches():
    queue = filled(*(Row(batched_with=str(number % 2)) for number in range(8)))
    assert [{row.batched_with for row in take(queue)} for _ in range(2)] == [{"0"}, {"1"}]


def test_there_is_no_room_for_ever():
    queue = filled(*(Row() for _ in range(3)), room=3)
    with pytest.raises(OverloadedError, match="3 requests are waiting"):
        queue.put(Row())
    take(queue)
    queue.put(Row())


def test_a_discarded_request_leaves_room():
    rows = [Row() for _ in range(3)]
    queue = filled(*rows, room=3)
    for row in rows[1:]:
        queue.discard(row)
        queue.discard(row)
    assert (len(queue), queue.tokens) == (1, 8)
    assert take(queue) == rows[:1]
    queue.discard(rows[0])  # it was taken
    assert len(queue) == 0
    assert not queue._waiting
    assert not queue._served, "nothing is kept about callers that have gone"


def test_a_closed_queue_gives_what_it_has():
    queue = filled(Row(), Row(tokens=30))
    queue.close()
    assert [len(take(queue)) for _ in range(3)] == [1, 1, 0]
    with pytest.raises(OverloadedError, match="shutting down"):
        queue.put(Row())


def test_an_idle_queue_waits_for_a_full_batch_but_not_longer():
    queue, taken = filled(room=100), []
    # Without a full batch it waits for longer than a test may take.
    thread = threading.Thread(target=lambda: taken.append(queue.take(max_tokens=32, max_wait=1e6)), daemon=True)
    thread.start()
    for _ in range(4):
        queue.put(Row())
    thread.join()
    assert len(taken[0]) == 4, "four rows of eight tokens are a full batch"
