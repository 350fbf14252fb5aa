"""The process with the models answers as the run does, dies without harm, and leaves nothing behind."""

import asyncio
import os
import shutil
import signal
from dataclasses import replace

import pytest

from polyloom.errors import ConditionError, OverloadedError, PolyloomError, UnavailableError
from polyloom.serve import supervisor
from polyloom.serve.engine import Limits
from polyloom.serve.supervisor import ModelProcess, Supervisor
from polyloom.workflows.train import train
from tests.serve.conftest import TASKS
from tests.serve.forked import forked_models
from tests.serve.test_engine import random_rows
from tests.tiny_run import tiny_recipe

PATIENT = Limits(timeout=600.0)  # a busy machine is slow


def supervise(run, work, **limits):
    async def main():
        async with Supervisor([run.path], limits=replace(PATIENT, **limits), threads=1) as models:
            return await work(models)

    with forked_models():
        return asyncio.run(main())


async def ask(models, rows):
    return await asyncio.gather(*(models.answer(*row) for row in rows), return_exceptions=True)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_errors_and_descriptions_come_through(run):
    rows = random_rows(100)
    expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])

    async def work(models):
        wrong = await ask(models, [("pos/xx", "ba"), ("pos/aa", 3)])
        return await ask(models, rows), wrong, models.info(), await models.counts(), models._process.process.pid

    found, wrong, info, counts, process = supervise(run, work)
    for answer, prediction, (condition, _) in zip(found, expected, rows, strict=True):
        assert answer["condition"] == condition
        assert all(list(answer["prediction"][key]) == list(getattr(prediction, key)) for key in ("labels", "heads")
                   if hasattr(prediction, key))  # fmt: skip
    assert [type(error) for error in wrong] == [ConditionError, PolyloomError]
    assert "Did you mean" in str(wrong[0]) or "Known: aa, bb, cc" in str(wrong[0])
    assert info["models"][0]["languages"] == ["aa", "bb", "cc"]
    assert counts["answered"] == 100
    assert not is_alive(process)


def test_a_killed_process_fails_what_waits_at_once_and_comes_back(run, monkeypatch):
    """R7. The rows that wait have ten minutes."""
    monkeypatch.setattr(supervisor, "PAUSE", 0.01)

    async def work(models):
        os.kill(models._process.process.pid, signal.SIGSTOP)  # so that no row is answered before it is killed
        waiting = [asyncio.create_task(models.answer("pos/aa", ["ba"] * 40)) for _ in range(500)]
        await asyncio.sleep(0)
        os.kill(models._process.process.pid, signal.SIGKILL)
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert models.starts == 1, "nothing waits for the next process"
        assert {type(one) for one in failed} == {UnavailableError}
        with pytest.raises(UnavailableError, match="Try again in a few seconds"):
            await models.answer("pos/aa", "ba")
        while models.starts == 1 or models._starting.locked():
            await asyncio.sleep(0.05)
        return await models.answer("pos/aa", ["ba"]), models.starts

    answer, starts = supervise(run, work)
    assert answer["prediction"]["words"] == ["ba"]
    assert starts == 2


def test_a_cancelled_row_is_withdrawn(run):
    async def work(models):
        process = models._process.process.pid
        os.kill(process, signal.SIGSTOP)  # so that none is answered before it is withdrawn
        tasks = [asyncio.create_task(models.answer("pos/aa", ["ba"] * 40)) for _ in range(50)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        os.kill(process, signal.SIGCONT)
        await models.answer("pos/bb", ["ba"])
        counts = await models.counts()
        assert not models._process._waiting
        return counts

    counts = supervise(run, work)
    assert counts["answered"] < 51
    assert counts["waiting"] == 0


def test_overload_has_its_own_error(run):
    async def work(models):
        process = models._process.process.pid
        os.kill(process, signal.SIGSTOP)  # until all rows are sent
        asked = asyncio.create_task(ask(models, [("pos/aa", ["ba"] * 40)] * 200))
        await asyncio.sleep(0)
        os.kill(process, signal.SIGCONT)
        return await asked

    assert OverloadedError in {type(one) for one in supervise(run, work, max_waiting=1)}


def test_a_run_that_cannot_be_loaded_ends_the_start(tmp_path):
    async def main():
        async with Supervisor([tmp_path]):
            pass

    with forked_models(), pytest.raises(UnavailableError, match="could not be loaded"):
        asyncio.run(main())


def test_a_run_that_has_grown_takes_its_place_without_loss(folder, run, tmp_path, monkeypatch):
    """All requests while runs are loaded again are answered, by one of both; afterwards by the new one.

    The new process does not take its place before ten further rows were answered.
    """
    shutil.copytree(run.path, tmp_path / "served")
    train(tiny_recipe(folder, tasks=TASKS, train={"steps": 5}), tmp_path / "grown")

    async def ask_on(models, answers):
        while True:
            answers.append((await models.answer("pos/aa", ["ba", "do"]))["version"])

    async def work(models):
        before = models.info()["models"][0]["version"]
        answers: list[str] = []
        callers = [asyncio.create_task(ask_on(models, answers)) for _ in range(8)]
        start = ModelProcess.start

        async def start_later(settings):
            child, count = await start(settings), len(answers)
            while len(answers) < count + 10:
                await asyncio.sleep(0.001)
            return child

        monkeypatch.setattr(ModelProcess, "start", start_later)
        (tmp_path / "served").rename(tmp_path / "gone")
        with pytest.raises(UnavailableError):
            await models.reload()
        (tmp_path / "grown").rename(tmp_path / "served")
        after = (await models.reload())["models"][0]["version"]
        new = (await models.answer("pos/aa", ["ba"]))["version"]
        for caller in callers:
            assert not caller.done()
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        return before, after, new, answers

    async def main():
        async with Supervisor([tmp_path / "served"], limits=PATIENT, threads=1) as models:
            return await work(models)

    with forked_models():
        before, after, new, answers = asyncio.run(main())
    assert before != after == new
    assert set(answers) <= {before, after}
    assert answers.count(before) >= 10
