"""Children of this process: torch and polyloom are imported once, and what a child changes stays with the child."""

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

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


def ended(child: int, seconds: float = 100.0) -> int:
    """Wait for a child; its exit code, negative where a signal ended it. One that hangs is killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"a child did not end within {seconds} s")


def together(work: Work, folder: Path, *, size: int = 1) -> list[Any]:
    """Let a team of children work, and return what each of them found: plain data, and tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*-of-*"):
        old.unlink()

    def one(rank: int) -> None:
        if size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/meet-of-{size}", rank=rank, world_size=size,
                timeout=timedelta(seconds=60),
            )  # fmt: skip
        with (folder / f"{rank}-of-{size}").open("wb") as file:  # now: the work may give up its rights
            torch.save(work(ProcessGroup(rank=rank, size=size)), file)

    children = [fork(partial(one, rank)) for rank in range(size)]
    codes = [ended(child) for child in children]
    assert codes == [0] * size, f"children ended with {codes}; see stderr"
    return [torch.load(folder / f"{rank}-of-{size}", weights_only=True) for rank in range(size)]


def alone(work: Callable[[], Any], folder: Path) -> Any:
    """The same for one child."""
    return together(lambda _: work(), folder)[0]


def read_log(run: Path) -> list[dict[str, Any]]:
    """The events of a run; a literal that is not JSON, such as NaN, is an error."""

    def refuse(literal: str) -> None:
        raise ValueError(f"{literal} is not JSON")

    lines = (run / "log.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]
