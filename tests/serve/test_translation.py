"""Translations that come and go are those of batches; taggers need not wait for them."""

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.errors import PredictionError
from polyloom.inference.in_flight import InFlight
from polyloom.inference.predictor import Predictor
from polyloom.loading import LoadedModel
from polyloom.serve import Engine, Limits
from polyloom.workflows.run import Run
from tests.serve.test_engine import answers
from tests.tasks.test_translation import DIRECTIONS, model_for, sentence
from tests.tasks.test_translation import tokenizer as tokenizer  # noqa: PLC0414 - a fixture

UNUSED: Any = None  # an engine needs the predictor alone


@pytest.fixture(scope="module")
def run(tokenizer):
    """A translator with random weights."""
    decoding = Decoding(beams=1, max_ratio=1.5, max_extra=3)
    predictor = Predictor(model_for(tokenizer), tokenizer=tokenizer, max_length=40, decoding=decoding)
    return Run(LoadedModel(Path("translator"), UNUSED, Path("step-1"), predictor, DIRECTIONS, UNUSED))


def rows(count: int) -> list[tuple[str, str]]:
    draw = random.Random(count)
    return [(draw.choice(DIRECTIONS), sentence(draw.randint(0, 999))) for _ in range(count)]


def serve(work, *runs, **limits):
    async def main():
        async with Engine(*runs, limits=Limits(timeout=600.0, **limits)) as engine:
            return await work(engine)

    return asyncio.run(main())


@pytest.mark.parametrize("room", [4, 64])
def test_translations_are_those_of_the_run(run, room):
    long = ". ".join(sentence(number) for number in range(12)) + "."  # is translated sentence by sentence
    asked = [*rows(60), (DIRECTIONS[0], long), (DIRECTIONS[1], " ")]
    expected = run.predict([text for _, text in asked], [name for name, _ in asked])
    assert len(set(expected)) > 40
    assert serve(lambda engine: answers(engine, asked), run, max_rows_in_flight=room) == expected


def test_beams_give_what_they_give_in_batches(run, tokenizer):
    predictor = Predictor(run.model, tokenizer=tokenizer, decoding=Decoding(beams=2))
    beams = Run(replace(run.loaded, predictor=predictor))
    asked = rows(10)
    expected = beams.predict([text for _, text in asked], [name for name, _ in asked])
    assert serve(lambda engine: answers(engine, asked), beams) == expected


def test_translations_of_disconnected_clients_leave_the_batch(run, monkeypatch):
    """The first step does not end before nineteen of twenty callers have gone; the next one has one row."""
    gone, step, steps = threading.Event(), InFlight.step, []

    def held(self):
        steps.append(len(self))
        gone.wait()
        return step(self)

    monkeypatch.setattr(InFlight, "step", held)

    async def work(engine):
        with engine.queue._changed:  # the lock without which the worker takes nothing
            tasks = [asyncio.create_task(engine.answer(name, text)) for name, text in rows(20)]
            await asyncio.sleep(0)  # each of them runs until it waits
        while not steps:
            await asyncio.sleep(0.001)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        gone.set()
        return (await tasks[0]).prediction

    name, text = rows(20)[0]
    found = serve(work, run)
    assert steps[0] >= 20, "long texts are several rows"
    assert set(steps[1:]) == {1}
    assert found == run.predict(text, name)


def test_a_step_that_fails_ends_its_rows_and_nothing_else(run, monkeypatch):
    step, steps = InFlight.step, []

    def fail(self):
        steps.append(len(self))
        if len(steps) == 3:
            raise RuntimeError("no memory")
        return step(self)

    monkeypatch.setattr(InFlight, "step", fail)

    async def work(engine):
        return await answers(engine, rows(5)), await answers(engine, rows(5))

    failed, after = serve(work, run)
    assert all(isinstance(one, PredictionError) and "no memory" in str(one) for one in failed)
    assert after == run.predict([text for _, text in rows(5)], [name for name, _ in rows(5)])


def test_a_damaged_direction_fails_alone(run, monkeypatch):
    name = rows(8)[0][0]
    damaged, made = Condition.parse(name), run.model.method.weights

    def weights(conditions):
        computed = made(conditions)
        if damaged not in conditions:
            return computed
        place, keys = list(conditions).index(damaged), list(computed.decoder_keys)
        for tensor in computed.blocks[0].tensors.values():
            tensor[place] = float("nan")
        keys[place] = (-1,)  # its weights are those of no other direction any more
        return replace(computed, decoder_keys=tuple(keys))

    asked = rows(8)
    expected = run.predict([text for _, text in asked], [name for name, _ in asked])
    monkeypatch.setattr(run.model.method, "weights", weights)
    run.predictor.cache.clear()
    found = serve(lambda engine: answers(engine, asked), run)
    run.predictor.cache.clear()
    for (asked_for, _), text, wanted in zip(asked, found, expected, strict=True):
        assert isinstance(text, PredictionError) if asked_for == name else text == wanted
