"""The engine gives every caller what the run alone predicts, whatever happens to other requests."""

import asyncio
import dataclasses
import random
import threading
import time
from collections.abc import Callable

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.errors import ConditionError, DeadlineError, OverloadedError, PolyloomError, PredictionError
from polyloom.serve import Engine, Limits
from polyloom.workflows.run import load
from polyloom.workflows.train import train
from tests.tiny_run import LANGUAGES, WORDS, tiny_recipe


def draw_input(task: str, draw: random.Random):
    words = tuple(draw.choices(WORDS, k=draw.randint(1, 12)))
    return (" ".join(words), " ".join(draw.choices(WORDS, k=9))) if task in ("nli", "qa") else words


def random_rows(count: int, seed: object = 0):
    draw = random.Random(str(seed))
    tasks = [draw.choice(("pos", "ner", "dep", "nli", "qa")) for _ in range(count)]
    return [(f"{task}/{draw.choice(LANGUAGES)}", draw_input(task, draw)) for task in tasks]


def serve(run, work, **limits):
    """Run a coroutine function with an engine."""

    async def main():
        async with Engine(run, limits=Limits(timeout=600.0, **limits)) as engine:  # a busy machine is slow
            return await work(engine)

    return asyncio.run(main())


async def answers(engine, rows):
    """Ask for all rows before the first batch is made, and return the predictions and errors."""
    with engine.queue._changed:  # the lock without which the worker takes nothing
        asked = [asyncio.create_task(engine.answer(*row)) for row in rows]
        await asyncio.sleep(0)  # each of them runs until it waits
    found = await asyncio.gather(*asked, return_exceptions=True)
    return [one if isinstance(one, BaseException) else one.prediction for one in found]


def assert_same(found, expected):
    """Labels, trees and answers are equal, and their scores but for rounding."""
    for one, other in zip(found, expected, strict=True):
        assert repr(one) == repr(other)
        for field in dataclasses.fields(other):
            value, wanted = getattr(one, field.name), getattr(other, field.name)
            assert value == (pytest.approx(wanted, abs=1e-4) if field.name.startswith("score") else wanted)


def test_languages_differ(run):
    """Otherwise the tests below would not notice the weights of another row."""
    draw = random.Random(0)
    for task in ("pos", "ner", "dep", "nli", "qa"):
        rows = [draw_input(task, draw) for _ in range(40)]
        pairs = zip(run.predict(rows, f"{task}/aa"), run.predict(rows, f"{task}/bb"), strict=True)
        assert sum(repr(one) != repr(other) for one, other in pairs) > 20, task


@pytest.mark.parametrize("tokens", [16, 4096])
def test_callers_get_what_the_run_predicts(run, tokens):
    rows = random_rows(300)
    expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])

    async def work(engine):
        found = await answers(engine, rows)
        return found, engine.counts

    found, counts = serve(run, work, max_batch_tokens=tokens)
    assert_same(found, expected)
    assert counts.answered == 300
    assert (counts.batches < 50) == (tokens == 4096)


def test_weights_are_made_once_in_few_calls_and_ahead_for_rows_that_wait(run, monkeypatch):
    calls: list[list[Condition]] = []
    made = run.model.method.weights

    def weights(conditions):
        calls.append(list(conditions))
        return made(conditions)

    monkeypatch.setattr(run.model.method, "weights", weights)
    run.predictor.cache.clear()
    kinds = [("pos", ("ba",) * 2), ("ner", ("ba",) * 30)]
    rows = [(f"{task}/{language}", words) for task, words in kinds for language in LANGUAGES]

    async def work(engine):
        return await answers(engine, rows * 5)

    found = serve(run, work, max_batch_tokens=40)
    assert not any(isinstance(one, Exception) for one in found)
    assert len(calls) == 1, "those of the long rows are made with those of the short ones"
    assert sorted(str(condition) for call in calls for condition in call) == sorted({name for name, _ in rows})


def test_a_cache_of_two_adapters_keeps_its_bytes_and_gives_the_same_answers(run, monkeypatch):
    """R4, and what `test_soak` measures for minutes: memory does not grow while conditions come and go."""
    rows = random_rows(400)
    expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])
    cache, predict = run.predictor.cache, run.predictor.predict_encoded
    room = 2 * run.model.method.weights(["pos/aa"]).num_bytes()
    counted, real = [], []

    def watched(examples, records, **options):
        predicted = predict(examples, records, **options)
        tensors = [t for kept in cache._kept.values() for block in kept.blocks for t in block.tensors.values()]
        memory = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        counted.append(cache.num_bytes)
        real.append(sum(memory.values()))
        return predicted

    monkeypatch.setattr(run.predictor, "predict_encoded", watched)
    cache.clear()
    before = cache.num_computed

    async def work(engine):
        monkeypatch.setattr(cache, "max_bytes", room)
        return await answers(engine, rows)

    found = serve(run, work, max_batch_tokens=64)
    assert_same(found, expected)
    assert cache.num_computed - before > 100, "most were made again and again"
    assert len(counted) > 40
    assert 0 < max(counted) <= room
    assert real == counted, "no more memory is held than is counted"


def test_an_answer_says_what_made_it(run):
    async def work(engine):
        return [await engine.answer(name, ("ba", "do")) for name in ("pos/aa", "pos/bb", "pos/cc", "pos/aa")]

    first, other, zero_shot, again = serve(run, work)
    assert (first.model, first.condition) == ("hyper", Condition("pos", "aa"))
    assert first.version.startswith(f"{run.checkpoint.name}@")
    assert first.weights == again.weights != other.weights
    assert (first.zero_shot, zero_shot.zero_shot) == (False, True)


def test_wrong_inputs_are_refused_before_they_wait(run):
    async def work(engine):
        for condition, value, error in (
            ("pos/xx", "ba", ConditionError),
            ("parse/aa", "ba", ConditionError),
            ("pos/aa", 3, PolyloomError),
            ("pos/aa", "ba " * 100, PredictionError),
        ):
            with pytest.raises(error):
                await engine.answer(condition, value)
        return engine.counts

    assert serve(run, work, max_input_tokens=90).batches == 0


def test_one_poisoned_row_fails_alone(run, monkeypatch):
    """R6: a condition whose weights are not a number, an unknown language and an input that is too long, of 32."""
    rows = random_rows(29)
    expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])
    damaged, made = Condition("pos", "cc"), run.model.method.weights

    def weights(conditions):
        computed = made(conditions)
        for number, condition in enumerate(map(Condition.parse, conditions)):
            if condition == damaged:
                for tensor in computed.blocks[0].tensors.values():
                    tensor[number] = torch.nan
        return computed

    monkeypatch.setattr(run.model.method, "weights", weights)
    run.predictor.cache.clear()
    rows = [(c, v) for c, v in rows if c != str(damaged)]
    expected = [e for e, (c, _) in zip(expected, random_rows(29), strict=True) if c != str(damaged)]
    bad = [("pos/cc", ("ba",)), ("pos/xx", ("ba",)), ("pos/aa", ("ba",) * 90)]

    async def work(engine):
        return await answers(engine, rows + bad), engine.counts

    found, counts = serve(run, work, max_input_tokens=80)
    assert_same(found[:-3], expected)
    kinds = (PredictionError, ConditionError, PredictionError)
    assert all(isinstance(one, kind) for one, kind in zip(found[-3:], kinds, strict=True))
    assert counts.failed == 1
    run.predictor.cache.clear()


def test_a_batch_that_fails_is_predicted_row_by_row(run, monkeypatch):
    rows, predict = random_rows(20), run.predictor.predict_encoded

    def fail(examples, records, **options):
        if any(record.words == ("sat", "sat") for record in records if hasattr(record, "words")):
            raise RuntimeError("no memory")
        return predict(examples, records, **options)

    monkeypatch.setattr(run.predictor, "predict_encoded", fail)

    async def work(engine):
        return await answers(engine, [*rows, ("pos/aa", ("sat", "sat"))])

    *others, bad = serve(run, work)
    assert not any(isinstance(one, Exception) for one in others)
    assert isinstance(bad, PredictionError)
    assert "no memory" in str(bad)


class Busy:
    """Hold every batch of a run as long as `until` says that it must wait.

    Attributes:
        batches: The conditions of each batch that was begun.
    """

    def __init__(self, monkeypatch, run, until: Callable[[], bool]):
        predict = run.predictor.predict_encoded
        self.batches: list[list[Condition]] = []

        def held(examples, records, **options):
            self.batches.append([example.condition for example in examples])
            while not until():
                time.sleep(0.001)
            return predict(examples, records, **options)

        monkeypatch.setattr(run.predictor, "predict_encoded", held)

    async def has_begun(self):
        while not self.batches:
            await asyncio.sleep(0.001)


def test_a_full_queue_refuses_and_goes_on(run, monkeypatch):
    free = threading.Event()
    busy = Busy(monkeypatch, run, free.is_set)

    async def work(engine):
        first = asyncio.create_task(engine.answer("pos/aa", ("ba",)))
        try:
            await busy.has_begun()
            rows = [asyncio.create_task(engine.answer(*row)) for row in random_rows(40)]
            await asyncio.sleep(0)  # each of them runs until it waits, or is refused
            assert (len(engine.queue), engine.counts.refused) == (10, 30)
        finally:
            free.set()
        await first
        found = await asyncio.gather(*rows, return_exceptions=True)
        assert [isinstance(one, OverloadedError) for one in found] == [False] * 10 + [True] * 30
        return await answers(engine, random_rows(5))

    assert not any(isinstance(one, Exception) for one in serve(run, work, max_waiting=10))


def test_a_deadline_is_kept_while_the_model_is_busy(run, monkeypatch):
    free = threading.Event()
    busy = Busy(monkeypatch, run, free.is_set)

    async def work(engine):
        first = asyncio.create_task(engine.answer("pos/aa", ("ba",)))
        try:
            await busy.has_begun()
            with pytest.raises(DeadlineError, match=r"no answer within 0\.05 seconds"):
                await engine.answer("pos/bb", ("ba",), timeout=0.05)
            assert len(engine.queue) == 0
        finally:
            free.set()
        await first

    serve(run, work)
    assert busy.batches == [[Condition("pos", "aa")]], "nobody waits for it any more, so it is not predicted"


def test_rows_of_a_disconnected_client_are_not_predicted(run, monkeypatch):
    free = threading.Event()
    busy = Busy(monkeypatch, run, free.is_set)

    async def work(engine):
        first = asyncio.create_task(engine.answer("pos/aa", ("ba",)))
        try:
            await busy.has_begun()
            gone = [asyncio.create_task(engine.answer("pos/bb", ("ba",))) for _ in range(50)]
            await asyncio.sleep(0)  # each of them runs until it waits
            assert len(engine.queue) == 50
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
            assert (len(engine.queue), engine.counts.cancelled) == (0, 50)
        finally:
            free.set()
        await first
        return await engine.answer("pos/cc", ("ba",))

    serve(run, work)
    assert busy.batches == [[Condition("pos", "aa")], [Condition("pos", "cc")]]


def test_leaving_answers_what_waits(run, monkeypatch):
    async def main():
        async with Engine(run, limits=Limits(timeout=600.0, max_batch_tokens=1)) as engine:
            busy = Busy(monkeypatch, run, lambda: engine.queue.closed)
            tasks = [asyncio.create_task(engine.answer("pos/aa", ("ba",))) for _ in range(4)]
            await busy.has_begun()
        with pytest.raises(OverloadedError):
            await engine.answer("pos/aa", ("ba",))
        return await asyncio.gather(*tasks)

    assert len(asyncio.run(main())) == 4


def test_runs_with_the_same_backbone_hold_it_once(run, folder):
    """Hyper-X trains norms, MAD-X the head, and `full` everything; what is equal is shared."""
    train(tiny_recipe(folder, "madx", train={"steps": 5}), folder / "stored")
    train(tiny_recipe(folder, "full", train={"steps": 5}), folder / "full")
    runs = [load(folder / name) for name in ("stored", "hyper", "full")]
    expected = [repr(one.predict(("ba", "do"), "pos/aa")) for one in runs]

    async def main():
        async with Engine(*(one.path for one in runs), limits=Limits(timeout=600.0)) as engine:
            places = [{p.data_ptr(): p.nbytes for p in m.run.model.backbone.parameters()} for m in engine.models]
            found = [repr(m.run.predict(("ba", "do"), "pos/aa")) for m in engine.models]
            return places, found, [(await engine.answer(name, "ba do")).model for name in ("pos/aa", "ner/aa")]

    (stored, hyper, full), found, chosen = asyncio.run(main())
    assert found == expected
    assert chosen == ["stored", "hyper"]
    shared = sum(size for place, size in hyper.items() if place in stored)
    assert shared > 0.9 * sum(stored.values())
    assert not full.keys() & stored.keys()


def test_weights_of_inference_tensors_are_cached(run):
    with torch.inference_mode():
        loaded = load(run.path)
        assert next(loaded.model.method.parameters()).is_inference()
        assert repr(loaded.predict(("ba", "do"), "pos/aa")) == repr(run.predict(("ba", "do"), "pos/aa"))
        assert len(loaded.predictor.cache) == 1
