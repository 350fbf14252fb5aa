"""Limits of an engine."""

from dataclasses import dataclass

from polyloom.ranges import Count, NotNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of an engine.

    Attributes:
        max_waiting: Number of requests that may wait; further ones are refused.
        max_batch_tokens: Number of tokens of a batch, padding included.
        max_rows_in_flight: Number of translations that are generated at the same time.
        max_input_tokens: Number of tokens of an input; longer ones are refused.
        max_wait_ms: Milliseconds that an idle engine waits for further requests of a batch.
        timeout: Seconds after which a request is given up, unless it has a timeout of its own.
        cache_mb: Megabytes of cached weights of each model.
    """

    max_waiting: Count = 1024
    max_batch_tokens: Count = 4096
    max_rows_in_flight: Count = 64
    max_input_tokens: Count = 8192
    max_wait_ms: NotNegative = 2.0
    timeout: Positive = 30.0
    cache_mb: Count = 256
