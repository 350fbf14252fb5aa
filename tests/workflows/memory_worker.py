"""Measure the peak memory of a step of training, in a process of its own: ``python -m tests.workflows.memory_worker``.

Two recipes are given: a tiny one, whose step loads all code and libraries, and the one that is measured.
"""

import ctypes
import gc
import json
import os
import sys
from pathlib import Path

import torch

from polyloom.config import load_recipe
from polyloom.training.distributed import ProcessGroup, init_distributed
from polyloom.training.loop import TrainLoop
from polyloom.workflows.train import prepare_training


def status(key: str) -> int:
    """Return a size of this process in bytes: ``VmRSS`` now, ``VmHWM`` at its peak."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:")]
    return 1024 * int(line.split()[1])


def settle() -> None:
    """Give free memory back to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def peak_of_a_step(path: str, process_group: ProcessGroup) -> int:
    """Return the peak of the second step: the first one makes the state of the optimizer."""
    setup = prepare_training(load_recipe(path))
    plan = setup.plans[0]
    loop = TrainLoop(setup.model, plan, tokenizer=setup.tokenizer, process_group=process_group)
    steps = loop.steps()
    next(steps)
    settle()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
    next(steps)
    return status("VmHWM")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with init_distributed() as process_group:
        peak_of_a_step(sys.argv[1], process_group)
        settle()
        before = status("VmRSS")
        after = peak_of_a_step(sys.argv[2], process_group)
        print(json.dumps({"measured": after - before}), flush=True)
        process_group.barrier()
    os._exit(0)
