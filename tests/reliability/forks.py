"""Children of this process: torch and polyloom are imported once, and what a child changes stays with the child.

Children can die at a place of their own (`die_at`), and show what they would leave at each of them (`Snapshots`).
"""

import builtins
import gc
import io
import itertools
import json
import math
import os
import shutil
import signal
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from polyloom.training.distributed import ProcessGroup

Work = Callable[[ProcessGroup], Any]


def fork(work: Callable[[], Any]) -> int:
    """Start a child; what goes wrong in it goes to its stderr."""
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)  # renews torch's pool, which threads of a child would otherwise all begin to renew
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(child: int, seconds: float = math.inf) -> int:
    """Wait for a child; its exit code, negative where a signal ended it. One that hangs is killed.

    By default the time limit of the test is the only one: a machine with much else to do may be slow.
    """
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        raise TimeoutError(f"a child did not end within {seconds} s")
    except BaseException:  # also that of pytest-timeout
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def together(work: Work, folder: Path, *, size: int = 1) -> list[Any]:
    """Let a team of children work, and return what each of them found: plain data, and tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*-of-*"):
        old.unlink()

    def one(rank: int) -> None:
        if size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/meet-of-{size}", rank=rank, world_size=size,
                timeout=timedelta(minutes=5),  # that of a test
            )  # fmt: skip
        with (folder / f"{rank}-of-{size}").open("wb") as file:  # now: the work may give up its rights
            torch.save(work(ProcessGroup(rank=rank, size=size)), file)

    children = [fork(partial(one, rank)) for rank in range(size)]
    try:
        codes = [ended(child) for child in children]
    except BaseException:  # then nobody waits for the others
        for child in children:
            with suppress(ChildProcessError):  # it has ended
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        raise
    assert codes == [0] * size, f"children ended with {codes}; see stderr"
    return [torch.load(folder / f"{rank}-of-{size}", weights_only=True) for rank in range(size)]


def alone(work: Callable[[], Any], folder: Path) -> Any:
    """The same for one child."""
    return together(lambda _: work(), folder)[0]


def peak_memory(work: Callable[[], Any], folder: Path) -> int:
    """The most bytes that Python held at a time during some work, in a child: threads of other tests do not count."""

    def measure() -> int:
        gc.collect()
        gc.freeze()  # with few old objects, garbage of this work is collected soon
        tracemalloc.start()
        work()
        return tracemalloc.get_traced_memory()[1]

    return int(alone(measure, folder))


def read_log(run: Path) -> list[dict[str, Any]]:
    """The events of a run; a literal that is not JSON, such as NaN, is an error."""

    def refuse(literal: str) -> None:
        raise ValueError(f"{literal} is not JSON")

    lines = (run / "log.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


# -- places where a process can die ------------------------------------------------------------------------------------

DIED = 113  # exit code of a child that died at a place

# Only operations on files change what a killed process leaves. A process that dies before and after each of these has
# therefore died at every instant that matters, and does so alike on every machine, however slow. Content is written
# between them, tensors by Rust: `Snapshots` shows files of which only half was written.
_OPERATIONS = [(os, "fsync"), (os, "link"), (os, "mkdir"), (os, "open"), (os, "rename"), (os, "replace"), (os, "rmdir")]
_OPERATIONS += [(os, "truncate"), (os, "unlink"), (io, "open"), (builtins, "open")]


class Place(NamedTuple):
    """An operation on files that a process is about to begin, or that is over.

    Attributes:
        operation: Its name; ``open`` is that of a file which is made anew.
        target: Path or descriptor of the file or folder.
        over: Whether the operation is over.
    """

    operation: str
    target: Any
    over: bool


def visit_places(visit: Callable[[Place], None]) -> None:
    """From now on, call a function at every place of this process, which must be a child: `os` stays changed."""
    visiting = False

    def at(place: Place) -> None:
        nonlocal visiting
        if not visiting:  # what the visitor does to files has no places
            visiting = True
            visit(place)
            visiting = False

    def watched(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            target = next(iter((*args, *options.values())))
            if name == "open" and not _makes_file(*args[1:], **options):
                return call(*args, **options)
            at(Place(name, target, over=False))
            try:
                return call(*args, **options)
            finally:
                at(Place(name, target, over=True))

        return operation

    for module, name in _OPERATIONS:
        setattr(module, name, watched(getattr(module, name), name))


def _makes_file(mode: str | int = "r", *_: Any, **options: Any) -> bool:
    """Whether a file is opened to be written from its beginning. Instead of a mode, `os.open` has flags."""
    mode = options.get("flags", mode)
    return bool(mode & (os.O_CREAT | os.O_TRUNC)) if isinstance(mode, int) else not {"w", "x"}.isdisjoint(mode)


def die_at(number: int, *, among: Callable[[Place], bool] = lambda _: True) -> None:
    """Let this child die at one of its places, counted from 1, or of those that `among` accepts."""
    count = itertools.count(1)

    def visit(place: Place) -> None:
        if among(place) and next(count) == number:
            os._exit(DIED)

    visit_places(visit)


class Snapshots:
    """Copies of a folder at all places of this child: what would be left of it, if it died there.

    There are two copies of a place, if they differ: one as after a kill, and one as after a power failure, where half
    is missing of each file that was not flushed. They are named so that their order is that of the places.

    Args:
        folder: The folder.
        into: Folder of the copies.

    Attributes:
        operations: Names of the operations so far.
    """

    def __init__(self, folder: Path, into: Path) -> None:
        self.operations: list[str] = []
        self._folder, self._into = folder, into
        self._flushed = set(self._files().values())  # what was there before is on the disk
        self._known: dict[str, Any] = {}
        self._numbers = itertools.count()
        into.mkdir(parents=True)
        visit_places(self._visit)

    def _visit(self, place: Place) -> None:
        if place.over:
            self.operations.append(place.operation)
            if place.operation == "fsync":
                self._flushed.add(_version(os.fstat(place.target)))
        files = self._files()
        # The log is not flushed, on purpose: runs that lost its last lines have a test of their own.
        lost = [
            path for path, version in files.items() if path.is_file() and version not in self._flushed
            and path.suffix != ".jsonl" and path.stat().st_size
        ]  # fmt: skip
        self._copy("killed", files, ())
        if lost:
            self._copy("power failed", files, lost)

    def _copy(self, how: str, files: dict[Path, Any], lost: Iterable[Path]) -> None:
        state = files, lost
        if files and state != self._known.get(how):
            self._known[how] = state
            copy = self._into / f"{next(self._numbers):05d} {how}"
            shutil.copytree(self._folder, copy)
            for path in lost:
                os.truncate(copy / path.relative_to(self._folder), path.stat().st_size // 2)

    def _files(self) -> dict[Path, tuple[int, ...]]:
        """All files and folders, each with what changes when it does."""
        return {path: _version(path.stat()) for path in sorted(self._folder.rglob("*"))}


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns
