"""How often the host waits for the device in a step. The meta device, which has no values, stands for a GPU.

Whatever needs a value of the device, or the number of values that a condition holds for, would wait for a GPU: the mode
below counts it and goes on with a made-up value.
"""

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polyloom.config import load_recipe
from polyloom.tasks.batch import Batch
from polyloom.training.distributed import ProcessGroup
from polyloom.workflows.train import prepare_training
from tests.reliability.tiny import tiny_loop, tiny_setup
from tests.tiny_decoder import decoder_recipe

aten = torch.ops.aten
BANKS = {"tables.py", "optim.py"}  # what they wait for is the number of rows that a step uses


class Waits(TorchDispatchMode):
    """Counts by the file that asks: what the host waits for, and copies to the device.

    Attributes:
        waits: Values, numbers of values, and copies from pageable memory in which the host takes part.
        copies: Copies to the device that the host only starts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves((args, kwargs))):
            if function is aten._to_copy.default and torch.device(kwargs.get("device") or "cpu").type == "meta":
                (self.copies if kwargs.get("non_blocking") else self.waits)[_asked_by()] += 1
            return function(*args, **kwargs)
        if function is aten._local_scalar_dense.default:
            self.waits[_asked_by()] += 1
            return True if args[0].dtype == torch.bool else 1.0 if args[0].is_floating_point() else 1
        if function is aten._to_copy.default and torch.device(kwargs.get("device") or "meta").type == "cpu":
            self.waits[_asked_by()] += 1
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        if function is aten.nonzero.default:  # as if all of them were
            self.waits[_asked_by()] += 1
            return args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.long)
        if function is aten._unique2.default:
            self.waits[_asked_by()] += 1
            return args[0].flatten(), args[0].clone(), args[0].flatten()
        if function in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            if masks := sum(index is not None and index.dtype == torch.bool for index in args[1]):
                self.waits[_asked_by()] += masks
            args = (args[0], [place for index in args[1] for place in _places(index)], *args[2:])
        return function(*args, **kwargs)


def _places(index: Tensor | None) -> list[Tensor | None]:
    """Return what takes the place of a mask that holds everywhere: the indices of all places."""
    if index is None or index.dtype != torch.bool:
        return [index]
    return [index.new_empty(index.numel(), dtype=torch.long) for _ in index.shape]


def _asked_by() -> str:
    """Return the file of the package, or of Transformers, that the present operation comes from."""
    files = [Path(frame.filename) for frame in traceback.extract_stack()]
    found = [file for file in files if "polyloom" in file.parts or "transformers" in file.parts]
    return found[-1].name if found else "torch"


def waits(setup: Any, stage: int = 0, **train: Any) -> Waits:
    """Take a step on a stand-in for a GPU."""
    loop = tiny_loop(setup, stage, process_group=ProcessGroup(device="meta"), **train)
    found = Waits()
    with found:
        loop.take(0, update=False)
    return found


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("method", ["hyperx", "psf", "full"])
def test_the_host_waits_once_in_a_step(world, method, pieces):
    setup = tiny_setup(world, method, mixture={"datasets_per_batch": 4})
    for stage in range(len(setup.plans)):
        found = waits(setup, stage, grad_accum_steps=pieces)
        # Transformers asks for each batch whether it has padding. The loop reads all that it reports at once.
        assert found.waits == {"masking_utils.py": pieces, "loop.py": 1}
        assert found.copies.keys() == {"batch.py", "loop.py"} | ({"base.py"} if method != "full" else set())
        assert found.copies["loop.py"] == 2, "counts; shares of tasks with their weights"


def test_banks_wait_for_the_rows_that_they_use_and_the_rest_does_not(world):
    setup = tiny_setup(world, "madx", mixture={"datasets_per_batch": 4})
    for stage in range(len(setup.plans)):
        found = waits(setup, stage)
        assert {file: count for file, count in found.waits.items() if file not in BANKS} == {
            "masking_utils.py": 1,
            "loop.py": 1,
        }


def test_a_decoder_waits_once_too(tmp_path):
    found = waits(prepare_training(load_recipe(decoder_recipe(tmp_path))))
    assert {file: count for file, count in found.waits.items() if file not in BANKS} == {
        "masking_utils.py": 1,  # where texts begin that are packed into a row
        "loop.py": 1,
    }
    assert found.waits["tables.py"] <= 1


def test_what_would_wait_is_counted():
    """Each of the ways to wait is noticed."""
    on_device = torch.ones(3, 2, device="meta")
    for wait in (
        lambda: on_device.sum().item(),
        lambda: bool(on_device.any()),
        on_device.tolist,
        on_device.nonzero,
        lambda: on_device[on_device > 0],
        lambda: on_device.long().unique(),
        lambda: torch.ones(1).to("meta"),
        on_device.cpu,
    ):
        with Waits() as found:
            wait()
        assert found.waits.total() >= 1
        assert not found.copies.total()


def test_batches_are_pinned_for_a_gpu_alone(world, monkeypatch):
    """Pinning itself needs a GPU, so what is shown here is that it is asked for."""
    pinned: list[Batch] = []

    def pin(batch: Batch) -> Batch:
        pinned.append(batch)
        return batch

    monkeypatch.setattr(Batch, "pinned", pin)
    loop = tiny_loop(tiny_setup(world), process_group=ProcessGroup())
    loop.batches(0)
    assert not pinned
    loop.process_group = ProcessGroup(device="cuda:0")
    (batch,) = loop.batches(0).micro_batches
    assert pinned == [batch]
