"""Encode records in batches, in this process or in several."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any, NamedTuple

from polyloom.data.packing import Packed, pack
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.tasks import Task

BATCH = 1000
_AHEAD = 4  # batches of each process that wait or are encoded


class Encoded(NamedTuple):
    """A batch of records with their encoded examples."""

    records: Sequence[Any]
    """The records."""
    packed: Packed
    """Their examples."""
    sides: tuple[Sequence[int], Sequence[int]] | None
    """For bitext: the number of tokens of each source, and of each target."""


class Encoder:
    """Encodes batches of records for a task.

    Attributes:
        columns: The columns of the examples.
        index: Numbers of the labels so far, in order of appearance.
    """

    def __init__(self, task: type[Task], tokenizer: Tokenizer) -> None:
        self._task, self._tokenizer = task, tokenizer
        self.columns = {**task.columns, "length": "int"}
        self.index: dict[str, int] = {}

    def __call__(self, records: Sequence[Any]) -> Encoded:
        """Encode at most `BATCH` records."""
        rows = list(self._task.encode(records, self._tokenizer, self.index))
        if len(rows) != len(records):
            raise ValueError(f"task {self._task.name} made {len(rows)} examples of {len(records)} records.")
        (packed,) = pack(rows, self.columns, name=f"task {self._task.name}")
        if self._task.kind != "bitext":
            return Encoded(records, packed, None)
        sides = [len(row["source"]) for row in rows], [len(row["target"]) for row in rows]
        return Encoded(records, packed, sides)


def batched(records: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield records in lists of at most `BATCH`."""
    iterator = iter(records)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def encode_in_processes(encoder: Encoder, batches: Iterable[list[Any]], processes: int) -> Iterator[Encoded]:
    """Encode batches in several processes, and yield the results in the order of the batches.

    Only as many batches are read as the processes need, so memory does not depend on their number.
    """
    waiting: deque[tuple[list[Any], Future[Encoded]]] = deque()
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_start, initargs=(encoder,))
    try:
        for batch in batches:
            waiting.append((batch, pool.submit(_encode, batch)))
            if len(waiting) >= _AHEAD * processes:
                records, future = waiting.popleft()
                yield future.result()._replace(records=records)
        for records, future in waiting:
            yield future.result()._replace(records=records)
    finally:
        pool.shutdown(cancel_futures=True)


_ENCODER: list[Encoder] = []  # of a worker process; sent once, not with every batch


def _start(encoder: Encoder) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallel ones
    _ENCODER[:] = [encoder]


def _encode(records: list[Any]) -> Encoded:
    return _ENCODER[0](records)._replace(records=())  # the caller has them: they need not travel back
