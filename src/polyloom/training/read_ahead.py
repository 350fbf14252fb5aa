"""Make the batches of the next steps in the background, so that steps do not wait for data."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Calls a function for the next numbers before they are asked for.

    The future is known, because a batch is a function of the number of its step. A context: at its end, work that has
    not begun is dropped.

    Args:
        make: The function. It must be safe to call from another thread.
        ahead: How many numbers ahead it is called.
        stop: The end of the numbers, exclusive.
        threads: Number of threads; more than one hides the latency of object storage.
    """

    def __init__(self, make: Callable[[int], T], *, ahead: int, stop: int, threads: int = 1) -> None:
        self._make, self._ahead, self._stop = make, ahead, stop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self._made: dict[int, Future[T]] = {}

    def __enter__(self) -> "ReadAhead[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def get(self, number: int) -> T:
        """Return the result for a number, or raise what the function raised for it."""
        for later in range(number, min(number + self._ahead + 1, self._stop)):
            if later not in self._made:
                self._made[later] = self._pool.submit(self._make, later)
        return self._made.pop(number).result()
