"""Processes that need the same take turns, and nobody waits for a dead one."""

import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polyloom.io.locks import locked
from tests.reliability.forks import ended, fork


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))


def waits_for_a_lock(process: int) -> bool:
    """Whether Linux lists a process among those that wait for a lock."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any(f" {process} " in line for line in lines if "->" in line)


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
        assert ended(child) == 0


def test_an_error_and_a_killed_process_leave_no_lock(tmp_path):
    with pytest.raises(KeyboardInterrupt), locked("a"):
        raise KeyboardInterrupt

    def hold() -> None:
        with locked("a"):
            (tmp_path / "held").touch()
            signal.pause()

    child = fork(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    try:
        waiting = fork(lambda: locked("a").__enter__())
        while not waits_for_a_lock(waiting):
            assert os.waitpid(waiting, os.WNOHANG) == (0, 0), "it was let in"
            time.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended(waiting) == 0


def test_without_a_cache_that_can_be_written_nobody_waits(tmp_path, monkeypatch):
    (tmp_path / "no-folder").touch()
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "no-folder"))
    with locked("a"), locked("a"):
        pass


# What Windows does not have: modules that cannot be imported, signals, flags and functions of `os`.
WITHOUT_POSIX = """
import os, signal, sys
os.chdir(sys.argv[1])
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("SIGXCPU", "SIGKILL", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
for name in ("pread", "pwrite", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "getuid", "fork", "sched_getaffinity"):
    delattr(os, name)
"""


def _run_without_posix(code, folder):
    command = [sys.executable, "-c", WITHOUT_POSIX + code, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported_without_fcntl(tmp_path):
    """In a fork, which has torch and Transformers already, but imports our own modules again."""
    # Not Ray's replicas and datatrove's steps: these libraries cannot be imported where fcntl is missing.
    left_out = ("polyloom.__main__", "polyloom.serve.ray", "polyloom.workflows.crawl")

    def import_all() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("polyloom", "ray", "datatrove")]:
            del sys.modules[name]
        sys.argv = ["", str(tmp_path)]
        exec(WITHOUT_POSIX, {})
        import polyloom

        for module in pkgutil.walk_packages(polyloom.__path__, "polyloom."):
            if module.name not in left_out:
                importlib.import_module(module.name)

    assert ended(fork(import_all)) == 0


def test_without_fcntl_files_and_folders_are_written_whole_and_a_live_writer_is_left_alone(tmp_path):
    _run_without_posix(
        """
from pathlib import Path
from polyloom.io.atomic import atomic_dir, remove_partial, write_text_atomic
from polyloom.io.locks import CAN_LOCK_FOLDERS, locked
assert not CAN_LOCK_FOLDERS
write_text_atomic(Path("a.txt"), "whole")
with atomic_dir(Path("folder")) as partial:
    (partial / "b.txt").write_text("whole")
    remove_partial(Path())
with locked("a"):
    pass
""",
        tmp_path,
    )
    assert sorted(path.name for path in tmp_path.rglob("*.txt")) == ["a.txt", "b.txt"]
    assert (tmp_path / "folder" / "b.txt").read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "cache", "folder"]
