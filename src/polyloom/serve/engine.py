"""The engine: callers wait in an event loop, and one thread predicts what waits.

The way of a request: `Engine.answer` (in the event loop) encodes the input and puts a `Request` into the `FairQueue`.
`Worker.run` (in a thread of its own, the only one with forward passes) takes the requests of a batch and predicts them.
Their outcomes return to the event loop, where `Engine._deliver` resolves the future that each caller awaits.
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from polyloom.conditions import Condition
from polyloom.data.records import Record
from polyloom.errors import (
    ConditionError,
    DeadlineError,
    ExportError,
    OverloadedError,
    PolyloomError,
    PredictionError,
    TooLongError,
)
from polyloom.inference.in_flight import InFlight
from polyloom.inference.predictions import make_record
from polyloom.inference.predictor import join_texts
from polyloom.ranges import Count, NotNegative, Positive
from polyloom.serve.adapter_files import AdapterFiles
from polyloom.serve.models import Answer, ServedModel, share_tensors
from polyloom.serve.queue import LOOK_AHEAD, FairQueue
from polyloom.tasks.base import Example
from polyloom.tasks.translation import end_of
from polyloom.workflows.run import Run, load


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of an engine."""

    max_waiting: Count = 1024
    """Requests that may wait; further ones are refused."""
    max_batch_tokens: Count = 4096
    """Tokens of a batch, padding included."""
    max_rows_in_flight: Count = 64
    """Translations that are generated at the same time."""
    max_input_tokens: Count = 8192
    """Tokens of an input; longer ones are refused."""
    max_wait_ms: NotNegative = 2.0
    """Milliseconds that an idle engine waits for a fuller batch."""
    timeout: Positive = 30.0
    """Seconds after which a request without a timeout of its own is given up."""
    cache_mb: Count = 256
    """Megabytes of cached weights of each model."""


@dataclass
class Counts:
    """What an engine has done so far."""

    answered: int = 0
    """Requests with an answer."""
    failed: int = 0
    """Requests that could not be predicted."""
    refused: int = 0
    """Requests for which there was no room."""
    timed_out: int = 0
    """Requests without an answer in time."""
    cancelled: int = 0
    """Requests of disconnected clients."""
    batches: int = 0
    """Deliveries of answers."""


@dataclass(eq=False, kw_only=True)
class Request:
    """An input on its way to its answer."""

    model: ServedModel
    condition: Condition
    record: Record
    example: Example
    tokens: int
    """Length of the encoded input."""
    caller: str
    """Whose request it is; callers share the engine fairly."""
    future: "asyncio.Future[Answer]"
    """Resolved in the event loop. It is done early if the client disconnected or the time is up."""
    arrived: float = field(default_factory=time.monotonic)
    # The worker sets the following when it takes the request.
    cached: bool = False
    """Whether the weights of the condition were in the cache."""
    started: float = 0.0
    rows: int = 1
    """Requests of its batch, or translations in flight when it joined."""
    parts: list[str | PolyloomError | None] = field(default_factory=list)
    """For a translation, the texts of the parts of its source, ``None`` until each has ended."""

    @property
    def generates(self) -> bool:
        """Whether the prediction is generated text."""
        return self.model.task(self.condition).generates

    @property
    def batched_with(self) -> tuple[int, bool]:
        """What the requests of a batch have in common: the model, and whether it generates text."""
        return id(self.model), self.generates

    def answer(self, decoded: Any, confidence: Any = None) -> Answer:
        """Build the answer from the decoded value of the task's head."""
        return self.model.answer(
            self.condition,
            self.model.task(self.condition).prediction(self.record, decoded, confidence),
            cached=self.cached, cut=self.model.is_cut(self.example), waited=self.started - self.arrived,
            computed=time.monotonic() - self.started, rows=self.rows,
        )  # fmt: skip

    def fail(self, error: Exception) -> PolyloomError:
        """Return the error for the caller, whatever was raised."""
        if isinstance(error, PolyloomError):
            return error
        return PredictionError(f"{self.condition}: {type(error).__name__}: {error}")


Outcome = tuple[Request, Answer | PolyloomError]


class Engine:
    """Predict inputs of many callers, each of any task and language, in shared batches.

    ::

        async with Engine("runs/tagger", "runs/translator") as engine:
            answer = await engine.answer("pos/tr", "Bu bir cümle.")

    Runs with the same backbone hold it in memory once, so they must not be trained while they are served. A condition
    that several runs can predict is predicted by the first of them.

    Args:
        *runs: Runs, exported adapters, or their folders.
        limits: Limits.
        beams: Beams of translations. With 1, translations join and leave between steps. Default: those of the runs.
        adapters: Where adapters are written as files for another server. Default: nowhere.
        device: Such as ``cpu``. By default a GPU if there is one.
    """

    def __init__(
        self,
        *runs: Run | str | Path,
        limits: Limits | None = None,
        beams: int | None = None,
        adapters: AdapterFiles | None = None,
        device: str | None = None,
    ) -> None:
        self.limits, self.adapters, self.counts = limits or Limits(), adapters, Counts()
        loaded = [run if isinstance(run, Run) else load(run, device=device) for run in runs]
        share_tensors(loaded)
        for run in loaded:
            run.model.eval()
            run.predictor.cache.max_bytes = self.limits.cache_mb << 20
            if beams is not None:
                run.predictor.decoding = replace(run.predictor.decoding, beams=beams)
        self.models = [ServedModel(run) for run in loaded]
        self.queue = FairQueue[Request](self.limits.max_waiting)
        self.worker = Worker(
            self.queue, self.limits, lambda outcomes: self._loop.call_soon_threadsafe(self._deliver, outcomes)
        )
        self._thread = threading.Thread(target=self.worker.run, name="polyloom-engine", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse further requests, answer those that wait, and stop."""
        self.queue.close()
        await asyncio.to_thread(self._thread.join)  # the event loop must run on: it delivers the last answers

    async def answer(
        self, condition: Condition | str, value: Any, *, caller: str = "", timeout: float | None = None
    ) -> Answer:
        """Predict one input.

        Args:
            condition: ``task/language`` or ``task/source/target``.
            value: The input, as for `Run.predict`.
            caller: Whose request it is; callers share the engine fairly.
            timeout: Seconds until the request is given up. Default: that of the limits.

        Raises:
            OverloadedError: Too many requests are waiting.
            DeadlineError: The time is up.
            PolyloomError: The input or its condition is wrong.
        """
        condition = Condition.parse(condition)
        model = self.find(condition)
        task, predictor = model.task(condition), model.run.predictor
        record = make_record(value, task, condition)
        if (empty := task.record_kind().empty_prediction(record)) is not None:
            return model.answer(condition, empty)

        # Encoded here, in the event loop, and not by the worker: the queue batches by length, and the longest inputs
        # are refused before they wait.
        (example,) = predictor.encode([(condition, record)])
        tokens = predictor.length(example)
        if tokens > self.limits.max_input_tokens:
            raise TooLongError(
                f"{condition}: the input has {tokens:,} tokens. At most {self.limits.max_input_tokens:,} are allowed."
            )
        request = Request(
            model=model, condition=condition, record=record, example=example, tokens=tokens, caller=caller,
            future=self._loop.create_future(),
        )  # fmt: skip
        try:
            self.queue.put(request)
        except OverloadedError:
            self.counts.refused += 1
            raise

        # A timeout and a disconnected client both cancel the future. A request that still waits then leaves the queue;
        # one that the worker has taken is predicted with its batch, and `_deliver` drops its outcome.
        seconds = timeout or self.limits.timeout
        try:
            async with asyncio.timeout(seconds):
                return await request.future
        except TimeoutError:
            self.counts.timed_out += 1
            raise DeadlineError(f"{condition}: no answer within {seconds:g} seconds.") from None
        except asyncio.CancelledError:
            self.counts.cancelled += request.future.cancelled()  # otherwise the answer came at the same moment
            raise
        finally:
            self.queue.discard(request)

    async def adapter(self, condition: Condition | str) -> dict[str, Any]:
        """Return the folder with the adapter of a condition, in PEFT's format; see `AdapterFiles`.

        Raises:
            PolyloomError: The condition is wrong, its adapter does not fit the format, or no adapters are written.
        """
        condition = Condition.parse(condition)
        model = self.find(condition)
        if self.adapters is None:
            raise ExportError("adapters: this server writes none. Start it with --adapters FOLDER.")
        return await asyncio.to_thread(self.adapters.find, model, condition)

    async def canary(self) -> Answer:
        """Predict a small input with the first model, to show that it can."""
        model = self.models[0]
        condition = model.example
        kind = model.task(condition).record_kind()
        if not kind.inputs:  # the model is served for its adapters alone
            return model.answer(condition, "")
        return await self.answer(condition, kind.example, caller="canary")

    def find(self, condition: Condition) -> ServedModel:
        """Return the first model that predicts a condition, or raise an error that says why none does."""
        reasons: list[tuple[bool, ConditionError]] = []
        for model in self.models:
            try:
                model.require(condition)
            except ConditionError as error:
                reasons.append((condition.task not in model.run.model.tasks, error))
            else:
                return model
        # The error of a model that has the task says more than that of one without it.
        raise min(reasons, key=lambda reason: reason[0])[1]

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """Resolve the futures of requests, in the event loop."""
        self.counts.batches += 1
        for request, outcome in outcomes:
            if request.future.done():  # nobody waits for it any more
                continue
            if isinstance(outcome, Answer):
                self.counts.answered += 1
                request.future.set_result(outcome)
            else:
                self.counts.failed += 1
                request.future.set_exception(outcome)


class Worker:
    """Predicts what waits in a queue until the queue is closed and empty. All of it runs in one thread.

    Taggers, parsers and classifiers get one batch at a time. Greedy translations are in flight: between two steps those
    that have ended leave and waiting ones join. Beam search is that of Transformers, which does not show its state, so
    with beams a batch of translations is generated to its end.

    Args:
        queue: The queue.
        limits: Limits of the engine.
        deliver: Called with the outcomes of requests.
    """

    def __init__(
        self, queue: FairQueue[Request], limits: Limits, deliver: Callable[[Sequence[Outcome]], object]
    ) -> None:
        self.queue, self.limits, self.deliver = queue, limits, deliver
        self._in_flight: dict[ServedModel, InFlight] = {}

    @property
    def rows_in_flight(self) -> int:
        """Number of translations that are being generated."""
        return sum(map(len, self._in_flight.values()))

    def run(self) -> None:
        """Predict until the queue is closed and empty."""

        def room(request: Request) -> int:
            return self.limits.max_rows_in_flight - self.rows_in_flight if self._is_greedy(request) else sys.maxsize

        while True:
            # With translations in flight the queue is only looked into: to block would hold up their next token.
            batch = self.queue.take(
                max_tokens=self.limits.max_batch_tokens,
                max_wait=self.limits.max_wait_ms / 1000,
                room=room,
                block=not self.rows_in_flight,
            )
            if not batch and not self.rows_in_flight and self.queue.closed:
                return
            for request in batch:
                request.cached = request.condition in request.model.run.predictor.cache
            if batch:
                self._attempt(batch)
            for model, rows in list(self._in_flight.items()):
                self._step(model, rows)

    def _is_greedy(self, request: Request) -> bool:
        return request.generates and request.model.run.predictor.decoding.beams == 1

    def _attempt(self, batch: Sequence[Request]) -> None:
        """Predict a batch, or let its translations join; one by one if that fails, so that one cannot harm others."""
        # Weights that are missing are made in one call, together with those that waiting requests will need next.
        if not all(request.cached for request in batch):
            model = batch[0].model
            waiting = [request.condition for request in self.queue.peek(LOOK_AHEAD) if request.model is model]
            with contextlib.suppress(Exception):  # a request that needs the damaged weights raises it again below
                model.run.predictor.cache.prepare([request.condition for request in batch], ahead=waiting)
        for request in batch:
            request.started, request.rows = time.monotonic(), len(batch)
        outcomes: list[Outcome] = []
        try:
            if self._is_greedy(batch[0]):
                self._join(batch)
            else:
                decoded = batch[0].model.run.predictor.predict_encoded(
                    [request.example for request in batch], [request.record for request in batch], confidences=True
                )
                for request, prediction in zip(batch, decoded, strict=True):
                    # Weights or scores that are not finite are an error of their own row alone.
                    if isinstance(prediction, PredictionError):
                        outcomes.append((request, prediction))
                    else:
                        outcomes.append((request, request.answer(*prediction)))
        except Exception as error:  # whatever it is: the thread must live on, and every caller wants an answer
            if len(batch) > 1:
                for request in batch:
                    self._attempt([request])
                return
            outcomes = [(batch[0], batch[0].fail(error))]
        if outcomes:
            self.deliver(outcomes)

    def _join(self, batch: Sequence[Request]) -> None:
        """Let translations join those that are in flight. A long source joins as several rows, its parts."""
        model = batch[0].model
        predictor = model.run.predictor
        if model not in self._in_flight:
            self._in_flight[model] = InFlight(
                predictor.model,
                cache=predictor.cache,
                eos_id=end_of(predictor.tokenizer),
                decoding=predictor.decoding,
            )
        rows = self._in_flight[model]
        prompts: list[Example] = []
        keys: list[tuple[Request, int]] = []
        for request in batch:
            parts = predictor.prompts(request.example, request.record)
            request.parts, request.rows = [None] * len(parts), len(rows) + len(batch)
            prompts += parts
            keys += [(request, place) for place in range(len(parts))]
        rows.join(predictor.make_batch(prompts), keys)

    def _step(self, model: ServedModel, rows: InFlight) -> None:
        """Generate one token of every row in flight, and deliver the translations that have ended."""
        rows.leave(lambda key: key[0].future.done())  # nobody waits for them any more
        ended: list[tuple[Any, list[int] | PolyloomError]]
        try:
            ended = [*rows.step()]
        except Exception as error:  # whatever it is; the state may be half of this step, half of the last
            ended = [(key, key[0].fail(error)) for key in rows.leave(lambda _: True)]
        outcomes: list[Outcome] = []
        for (request, place), ids in ended:
            text = ids if isinstance(ids, PolyloomError) else model.run.predictor.tokenizer.decode(ids)
            request.parts[place] = text
            parts = [part for part in request.parts if part is not None]
            if len(parts) == len(request.parts):
                whole = join_texts(parts)
                outcomes.append((request, request.answer(whole) if isinstance(whole, str) else whole))
        if outcomes:
            self.deliver(outcomes)
