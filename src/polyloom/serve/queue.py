"""The requests that wait: bounded, fair between callers, oldest first for each of them."""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

from polyloom.errors import OverloadedError

LOOK_AHEAD = 256  # waiting requests among which those of similar length are chosen


class Waiting(Protocol):
    """What a queue must know about a request."""

    caller: str
    """Whose request it is."""
    tokens: int
    """Its length."""

    @property
    def batched_with(self) -> object:
        """What the requests of a batch have in common."""


Request = TypeVar("Request", bound=Waiting)


class FairQueue(Generic[Request]):
    """The waiting requests of all callers. The event loop adds and removes them, the worker's thread takes them.

    The request that has waited longest is always in the next batch, so none starves. With several callers it is that of
    the caller that has been served fewest tokens. The rest of a batch are requests of similar length.

    Args:
        max_requests: Number of requests that may wait.
    """

    def __init__(self, max_requests: int) -> None:
        self.max_requests = max_requests
        self._changed = threading.Condition()  # its lock guards everything below
        self._waiting: dict[str, dict[int, Request]] = {}  # by caller, each in order of arrival
        self._served: dict[str, int] = {}  # tokens, of callers with waiting requests
        self._count = self._tokens = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    @property
    def closed(self) -> bool:
        """Whether further requests are refused."""
        return self._closed

    @property
    def tokens(self) -> int:
        """Number of tokens that wait."""
        return self._tokens

    def put(self, request: Request) -> None:
        """Add a request.

        Raises:
            OverloadedError: There is no room, or the queue is closed.
        """
        with self._changed:
            if self._closed:
                raise OverloadedError("the server is shutting down.")
            if self._count >= self.max_requests:
                raise OverloadedError(f"{self._count:,} requests are waiting. Try again later.")
            if request.caller not in self._waiting:
                # Level with the caller that was served least: time without requests earns no share of the next ones.
                self._served[request.caller] = min(self._served.values(), default=0)
                self._waiting[request.caller] = {}
            self._waiting[request.caller][id(request)] = request
            self._count += 1
            self._tokens += request.tokens
            self._changed.notify()

    def discard(self, request: Request) -> None:
        """Remove a request that nobody waits for any more, unless it was taken."""
        with self._changed:
            if id(request) in self._waiting.get(request.caller, ()):
                self._remove(request)

    def close(self) -> None:
        """Refuse further requests. Those that wait are still taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(
        self,
        *,
        max_tokens: int,
        max_wait: float,
        room: Callable[[Request], int] = lambda _: sys.maxsize,
        block: bool = True,
    ) -> list[Request]:
        """Return the requests of the next batch.

        Args:
            max_tokens: Tokens of a batch, padding included. A longer request is a batch of its own.
            max_wait: Seconds to wait for further requests, if there was none to begin with.
            room: How many requests may be taken with one; none if it is 0.
            block: Whether to wait until there is a request, or the queue is closed.
        """
        with self._changed:
            # After an idle time a few requests come at once; a moment's wait gives them one batch. Under load there is
            # no wait, since the next batch gathered while the last one was predicted.
            if block and not self._count:
                self._changed.wait_for(lambda: self._count or self._closed)
                self._changed.wait_for(lambda: self._tokens >= max_tokens or self._closed, timeout=max_wait)

            # A request without room stays where it is: those behind it, such as taggings behind translations, go first.
            first = next((request for request in self._in_turn() if room(request) > 0), None)
            if first is None:
                return []

            # Requests of similar length join it, as long as the batch, padded to the longest, keeps its budget.
            nearby = islice(self._in_turn(), LOOK_AHEAD)
            others = [other for other in nearby if other is not first and other.batched_with == first.batched_with]
            others.sort(key=lambda other: abs(other.tokens - first.tokens))
            batch, longest = [first], first.tokens
            for other in others:
                longest = max(longest, other.tokens)
                if len(batch) == room(first) or (len(batch) + 1) * longest > max_tokens:
                    break
                batch.append(other)

            for request in batch:
                self._served[request.caller] += request.tokens
            for request in batch:  # apart, as it forgets what was served to a caller with its last request
                self._remove(request)
            return batch

    def peek(self, count: int) -> list[Request]:
        """Return the requests that are next, without taking them."""
        with self._changed:
            return list(islice(self._in_turn(), count))

    def _in_turn(self) -> Iterator[Request]:
        """Yield waiting requests, one of each caller in turn, beginning with the caller that was served least."""
        callers = sorted(self._waiting, key=lambda caller: self._served[caller])
        turns = [deque(self._waiting[caller].values()) for caller in callers]
        while turns:
            for turn in turns:
                yield turn.popleft()
            turns = [turn for turn in turns if turn]

    def _remove(self, request: Request) -> None:
        waiting = self._waiting[request.caller]
        del waiting[id(request)]
        self._count -= 1
        self._tokens -= request.tokens
        if not waiting:
            del self._waiting[request.caller], self._served[request.caller]
