"""Processes that need the same take turns, and nobody waits for a dead one."""

import os
import signal
import time

import pytest

from polyloom.io.locks import locked
from tests.reliability.forks import ended, fork


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))


def test_processes_take_turns(tmp_path):
    def work() -> None:
        with locked("a"):
            (tmp_path / "inside").mkdir()  # an error if another one is inside
            time.sleep(0.1)
            (tmp_path / "inside").rmdir()

    children = [fork(work) for _ in range(4)]
    assert [ended(child) for child in children] == [0] * 4


def test_different_locks_do_not_wait_for_each_other(tmp_path):
    with locked("a"), locked("b\udc80"):  # also a name that is not UTF-8
        child = fork(lambda: locked("c").__enter__())
        assert ended(child, seconds=10) == 0


def test_an_error_and_a_killed_process_leave_no_lock(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked("a"):
        raise KeyboardInterrupt

    def hold() -> None:
        with locked("a"):
            (tmp_path / "held").touch()
            time.sleep(100)

    child = fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    waiting = fork(lambda: locked("a").__enter__())
    time.sleep(0.2)
    assert os.waitpid(waiting, os.WNOHANG) == (0, 0), "it waits"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert ended(waiting, seconds=10) == 0


def test_without_a_cache_that_can_be_written_nobody_waits(tmp_path, monkeypatch):
    (tmp_path / "no-folder").touch()
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "no-folder"))
    with locked("a"), locked("a"):
        pass
