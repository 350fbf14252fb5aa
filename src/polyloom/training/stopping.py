"""Stop a run on SIGTERM or SIGINT after the current step, and at once on a second signal."""

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_REPEATED = 5.0  # seconds in which a launcher and a scheduler may both send the same signal


class StopSignals:
    """Records SIGTERM and SIGINT as long as its context is active, which must be in the main thread.

    The first signal is recorded, and the run stops when it has saved. A second one ends the process at once.

    Args:
        launched: Whether a launcher started several processes. Then a second signal counts only some seconds after
            the first, because a launcher forwards what a scheduler may also send to every process.
        on_first: Called with the name of the first signal, between any two instructions of the program.

    Attributes:
        received: The first signal; none so far.
    """

    def __init__(self, *, launched: bool = False, on_first: Callable[[str], None] = lambda _: None) -> None:
        self.received: int | None = None
        self._received_at = 0.0
        self._ignored_seconds = _REPEATED if launched else 0.0
        self._on_first = on_first
        self._earlier_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._earlier_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._earlier_handlers.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = number, time.monotonic()
            self._on_first(signal.Signals(number).name)
        elif time.monotonic() - self._received_at >= self._ignored_seconds:
            raise stop_exception(number)


def stop_exception(number: int) -> KeyboardInterrupt | SystemExit:
    """Return the exception that ends a process as a signal does: with exit code 130 or 143."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
