"""The engine: callers ask from an event loop, and a worker predicts."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from polyloom.conditions import Condition
from polyloom.errors import ConditionError, DeadlineError, ExportError, OverloadedError, TooLongError
from polyloom.inference.predictions import PreparedInput, empty_prediction, is_empty, prepare_input
from polyloom.serve.adapter_files import AdapterFiles
from polyloom.serve.answers import Answer
from polyloom.serve.limits import Limits
from polyloom.serve.models import ServedModel, share_tensors
from polyloom.serve.queue import FairQueue
from polyloom.serve.requests import Request
from polyloom.serve.worker import Outcome, Worker
from polyloom.workflows.run import Run, load


@dataclass
class Counts:
    """What an engine has done so far.

    Attributes:
        answered: Requests with an answer.
        failed: Requests that could not be predicted.
        refused: Requests for which there was no room.
        timed_out: Requests that were given up.
        cancelled: Requests whose callers went away.
        batches: How often answers were handed out.
    """

    answered: int = 0
    failed: int = 0
    refused: int = 0
    timed_out: int = 0
    cancelled: int = 0
    batches: int = 0


CANARIES = {
    "tags": ("a",), "tree": ("a",), "pair": ("a", "a"), "bitext": "a", "labelled": "a", "choices": ("a",) * 4,
    "question": ("a", "a"),
}  # fmt: skip


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
        self.limits, self.adapters = limits or Limits(), adapters
        self.counts = Counts()
        self.models = self._prepare(runs, beams, device)
        self.queue = FairQueue[Request](self.limits.max_waiting)
        self.worker = Worker(self.queue, limits=self.limits, deliver=self._hand_over)
        self._thread = threading.Thread(target=self.worker.run, name="polyloom-engine", daemon=True)

    def _prepare(self, runs: Sequence[Run | str | Path], beams: int | None, device: str | None) -> list[ServedModel]:
        loaded = [run if isinstance(run, Run) else load(run, device=device) for run in runs]
        share_tensors(loaded)
        for run in loaded:
            run.model.eval()
            run.predictor.cache.max_bytes = self.limits.cache_mb << 20
            if beams is not None:
                run.predictor.decoding = replace(run.predictor.decoding, beams=beams)
        return [ServedModel(run) for run in loaded]

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Refuse further requests, answer those that wait, and stop."""
        self.queue.close()
        await asyncio.to_thread(self._thread.join)

    # -- callers ------------------------------------------------------------------------------------------------------

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
        parsed = Condition.parse(condition)
        model = self.find(parsed)
        source = prepare_input(value, model.task(parsed), parsed)
        if is_empty(source.record):
            return model.answer(parsed, empty_prediction(model.task(parsed), source))
        request = self._request(model, parsed, source, caller)
        try:
            self.queue.put(request)
        except OverloadedError:
            self.counts.refused += 1
            raise
        try:
            async with asyncio.timeout(timeout or self.limits.timeout):
                return await request.future
        except TimeoutError:
            self.counts.timed_out += 1
            raise DeadlineError(f"{parsed}: no answer within {timeout or self.limits.timeout:g} seconds.") from None
        except asyncio.CancelledError:
            self.counts.cancelled += request.future.cancelled()  # otherwise it has its answer
            raise
        finally:
            self.queue.discard(request)

    async def adapter(self, condition: Condition | str) -> dict[str, Any]:
        """Return the folder with the adapter of a condition, in PEFT's format; see `AdapterFiles`.

        Raises:
            PolyloomError: The condition is wrong, its adapter does not fit the format, or no adapters are written.
        """
        parsed = Condition.parse(condition)
        model = self.find(parsed)
        if self.adapters is None:
            raise ExportError("adapters: this server writes none. Start it with --adapters FOLDER.")
        return await asyncio.to_thread(self.adapters.find, model, parsed)

    async def canary(self) -> Answer:
        """Predict a small input with the first model, to show that it can."""
        model = self.models[0]
        condition = model.example
        if not model.task(condition).inputs:  # the model is there for its adapters
            return model.answer(condition, "")
        return await self.answer(condition, CANARIES[model.task(condition).kind], caller="canary")

    def find(self, condition: Condition) -> ServedModel:
        """Return the model that predicts a condition, or raise an error that says why none does."""
        problems: dict[bool, ConditionError] = {}
        for model in self.models:
            try:
                model.require(condition)
            except ConditionError as error:
                problems.setdefault(condition.task in model.run.model.tasks, error)
            else:
                return model
        raise problems.get(True) or problems[False]  # rather that of a model that has the task

    def _request(self, model: ServedModel, condition: Condition, source: PreparedInput, caller: str) -> Request:
        predictor = model.run.predictor
        (example,) = predictor.encode([(condition, source.record)])
        tokens = predictor.length(example)
        if tokens > self.limits.max_input_tokens:
            raise TooLongError(
                f"{condition}: the input has {tokens:,} tokens. At most {self.limits.max_input_tokens:,} are allowed."
            )
        future: asyncio.Future[Answer] = self._loop.create_future()
        return Request(
            model=model, condition=condition, source=source, example=example, tokens=tokens, caller=caller,
            future=future,
        )  # fmt: skip

    def _hand_over(self, outcomes: Sequence[Outcome]) -> None:
        """Pass outcomes from the worker's thread to that of the event loop."""
        self._loop.call_soon_threadsafe(self._deliver, outcomes)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        """Hand out answers, in the thread of the event loop."""
        self.counts.batches += 1
        for request, outcome in outcomes:
            if request.future.done():  # its caller has gone
                continue
            if isinstance(outcome, Answer):
                self.counts.answered += 1
                request.future.set_result(outcome)
            else:
                self.counts.failed += 1
                request.future.set_exception(outcome)
