"""The worker: one thread that owns the models, and predicts batches of whatever waits."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyloom.errors import PolyloomError, PredictionError
from polyloom.inference.in_flight import InFlight
from polyloom.inference.predictor import join_texts
from polyloom.serve.answers import Answer
from polyloom.serve.limits import Limits
from polyloom.serve.models import ServedModel
from polyloom.serve.queue import LOOK_AHEAD, FairQueue
from polyloom.serve.requests import Request
from polyloom.tasks.translation import end_of

Outcome = tuple[Request, Answer | PolyloomError]
Deliver = Callable[[Sequence[Outcome]], None]


@dataclass
class _Translating:
    """A request whose text is being generated, in parts if its source is long.

    Attributes:
        request: The request.
        start: When its first part joined.
        rows: Rows in flight then.
        parts: The texts so far, by their place.
        missing: Number of parts without a text.
    """

    request: Request
    start: float
    rows: int
    parts: list[str | PolyloomError] = field(default_factory=list)
    missing: int = 0


class Worker:
    """Predicts what waits in a queue until the queue is closed and empty.

    Taggers, parsers and classifiers get one batch at a time. Greedy translations are in flight: between two steps those
    that have ended leave and waiting ones join. Beam search is that of Transformers, which does not show its state, so
    with beams a batch of translations is generated to its end.

    Args:
        queue: The queue.
        limits: Limits of the engine.
        deliver: Called with the outcomes of requests.
    """

    def __init__(self, queue: FairQueue[Request], *, limits: Limits, deliver: Deliver) -> None:
        self.queue, self.limits, self.deliver = queue, limits, deliver
        self._in_flight: dict[ServedModel, InFlight] = {}

    @property
    def rows_in_flight(self) -> int:
        """Number of translations that are being generated."""
        return sum(map(len, self._in_flight.values()))

    def run(self) -> None:
        """Predict until the queue is closed and empty."""
        while True:
            batch = self.queue.take(
                max_tokens=self.limits.max_batch_tokens,
                max_wait=self.limits.max_wait_ms / 1000,
                room=self._room,
                block=not self.rows_in_flight,
            )
            for request in batch:
                request.cached = request.condition in request.model.run.predictor.cache
            if batch and self._is_greedy(batch[0]):
                self._attempt(batch, self._join)
            elif batch:
                self._attempt(batch, self._predict)
            elif not self.rows_in_flight and self.queue.closed:
                return
            for model, rows in list(self._in_flight.items()):
                self._step(model, rows)

    def _is_greedy(self, request: Request) -> bool:
        return request.generates and request.model.run.predictor.decoding.beams == 1

    def _room(self, request: Request) -> int:
        """Return how many requests may be taken with one."""
        return self.limits.max_rows_in_flight - self.rows_in_flight if self._is_greedy(request) else sys.maxsize

    def _attempt(self, batch: Sequence[Request], work: Callable[[Sequence[Request]], list[Outcome]]) -> None:
        """Do the work for a batch; if that fails, for each request by itself, so that one cannot harm the others."""
        with contextlib.suppress(Exception):  # whoever needs the weights meets the error
            self._generate_ahead(batch)
        try:
            outcomes = work(batch)
        except Exception as error:  # whatever it is
            if len(batch) > 1:
                for request in batch:
                    self._attempt([request], work)
                return
            outcomes = [(batch[0], _as_ours(error, batch[0]))]
        if outcomes:
            self.deliver(outcomes)

    def _generate_ahead(self, batch: Sequence[Request]) -> None:
        """Make the weights of a batch, if some are missing, together with some for requests that still wait."""
        if all(request.cached for request in batch):
            return
        model = batch[0].model
        waiting = [request.condition for request in self.queue.peek(LOOK_AHEAD) if request.model is model]
        model.run.predictor.cache.prepare([request.condition for request in batch], ahead=waiting)

    def _predict(self, batch: Sequence[Request]) -> list[Outcome]:
        start, predictor = time.monotonic(), batch[0].model.run.predictor
        examples, records = [request.example for request in batch], [request.source.record for request in batch]
        decoded = predictor.predict_encoded(examples, records, confidences=True)
        computed = time.monotonic() - start
        return [
            (
                request,
                one
                if isinstance(one, PredictionError)
                else request.answer(*one, waited=start - request.arrived, computed=computed, rows=len(batch)),
            )
            for request, one in zip(batch, decoded, strict=True)
        ]

    def _join(self, batch: Sequence[Request]) -> list[Outcome]:
        """Let translations join those that are in flight."""
        model = batch[0].model
        predictor, rows = model.run.predictor, self._rows_of(model)
        prompts, keys = [], []
        for request in batch:
            parts = predictor.prompts(request.example, request.source.record)
            whole = _Translating(request, time.monotonic(), len(rows) + len(batch), [""] * len(parts), len(parts))
            prompts += parts
            keys += [(whole, place) for place in range(len(parts))]
        rows.join(predictor.make_batch(prompts), keys)
        return []

    def _rows_of(self, model: ServedModel) -> InFlight:
        if model not in self._in_flight:
            predictor = model.run.predictor
            self._in_flight[model] = InFlight(
                predictor.model,
                cache=predictor.cache,
                eos_id=end_of(predictor.tokenizer),
                decoding=predictor.decoding,
            )
        return self._in_flight[model]

    def _step(self, model: ServedModel, rows: InFlight) -> None:
        """Generate one token of every row, and deliver the texts that have ended."""
        rows.leave(lambda key: key[0].request.future.done())  # their callers have gone
        ended: list[tuple[Any, list[int] | PolyloomError]]
        try:
            ended = [*rows.step()]
        except Exception as error:  # whatever it is; the state may be half of this step, half of the last
            ended = [(key, _as_ours(error, key[0].request)) for key in rows.leave(lambda _: True)]
        outcomes: list[Outcome] = []
        for (whole, place), ids in ended:
            text = ids if isinstance(ids, PolyloomError) else model.run.predictor.tokenizer.decode(ids)
            whole.parts[place] = text
            whole.missing -= 1
            if not whole.missing:
                outcomes.append((whole.request, _answer(whole)))
        if outcomes:
            self.deliver(outcomes)


def _answer(whole: _Translating) -> Answer | PolyloomError:
    text, request = join_texts(whole.parts), whole.request
    if isinstance(text, PolyloomError):
        return text
    about = {"waited": whole.start - request.arrived, "computed": time.monotonic() - whole.start, "rows": whole.rows}
    return request.answer(text, None, **about)


def _as_ours(error: Exception, request: Request) -> PolyloomError:
    if isinstance(error, PolyloomError):
        return error
    return PredictionError(f"{request.condition}: {type(error).__name__}: {error}")
