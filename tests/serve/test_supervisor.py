"""The process with the models answers as the run does, dies without harm, and leaves nothing behind."""

import asyncio
import os
import shutil
import signal
import time

import pytest

from polyloom.errors import ConditionError, OverloadedError, PolyloomError, UnavailableError
from polyloom.serve.limits import Limits
from polyloom.serve.supervisor import Supervisor
from polyloom.workflows.train import train
from tests.serve.conftest import TASKS
from tests.serve.test_engine import asked
from tests.tiny_run import tiny_recipe


def supervise(run, work, **limits):
    async def main():
        async with Supervisor([run.path], limits=Limits(timeout=600.0, **limits), threads=1) as models:
            return await work(models)

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
    rows = asked(100)
    expected = run.predict([value for _, value in rows], [condition for condition, _ in rows])

    async def work(models):
        wrong = await ask(models, [("pos/xx", "ba"), ("pos/aa", 3)])
        return await ask(models, rows), wrong, models.info(), await models.counts(), models._child.process.pid

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


def test_a_killed_process_fails_what_waits_at_once_and_comes_back(run):
    """R7."""

    async def work(models):
        waiting = [asyncio.create_task(models.answer("pos/aa", ["ba"] * 40)) for _ in range(500)]
        await asyncio.sleep(0)
        os.kill(models._child.process.pid, signal.SIGKILL)
        start = time.monotonic()
        failed = [one for one in await asyncio.gather(*waiting, return_exceptions=True) if isinstance(one, Exception)]
        assert time.monotonic() - start < 2
        assert failed
        assert all(isinstance(one, UnavailableError) for one in failed)
        with pytest.raises(UnavailableError):
            await models.answer("pos/aa", "ba")
        while models.starts == 1 or models._starting.locked():
            await asyncio.sleep(0.05)
        return await models.answer("pos/aa", ["ba"]), models.starts

    answer, starts = supervise(run, work)
    assert answer["prediction"]["words"] == ["ba"]
    assert starts == 2


def test_a_caller_that_goes_away_is_forgotten(run):
    async def work(models):
        tasks = [asyncio.create_task(models.answer("pos/aa", ["ba"] * 40)) for _ in range(200)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await models.answer("pos/bb", ["ba"])
        return await models.counts()

    counts = supervise(run, work)
    assert counts["answered"] + counts["cancelled"] <= 201
    assert counts["waiting"] == 0


def test_overload_has_its_own_error(run):
    async def work(models):
        return await ask(models, [("pos/aa", ["ba"] * 40)] * 200)

    assert OverloadedError in {type(one) for one in supervise(run, work, max_waiting=1)}


def test_a_run_that_cannot_be_loaded_ends_the_start(tmp_path):
    async def main():
        async with Supervisor([tmp_path]):
            pass

    with pytest.raises(UnavailableError, match="could not be loaded"):
        asyncio.run(main())


def test_a_run_that_has_grown_takes_its_place_without_loss(folder, run, tmp_path):
    """All requests while runs are loaded again are answered, by one of both; afterwards by the new one."""
    shutil.copytree(run.path, tmp_path / "served")
    train(tiny_recipe(folder, tasks=TASKS, train={"steps": 5}), tmp_path / "grown")

    async def ask_on(models, answers):
        while True:
            answers.append((await models.answer("pos/aa", ["ba", "do"]))["version"])

    async def work(models):
        before = models.info()["models"][0]["version"]
        answers: list[str] = []
        callers = [asyncio.create_task(ask_on(models, answers)) for _ in range(8)]
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
        async with Supervisor([tmp_path / "served"], threads=1) as models:
            return await work(models)

    before, after, new, answers = asyncio.run(main())
    assert before != after == new
    assert set(answers) <= {before, after}
    assert len(answers) > 10
