"""What the processes of a run send one another in a step: counted at the collectives, in bytes."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polyloom.nn.tables import Bank
from polyloom.training.distributed import ProcessGroup
from polyloom.workflows.train import TrainingSetup
from tests.reliability.forks import together
from tests.reliability.tiny import tiny_loop, tiny_setup

MIXED = {"datasets_per_batch": 4}
MANY = ["aa", "bb", "cc", *(f"x{number}" for number in range(97))]


class Collectives(TorchDispatchMode):
    """Notes the name and the bytes of every collective: of the largest of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace in ("c10d", "_c10d_functional"):
            sizes = [leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            name = function.name().partition("::")[2].strip("_").partition(".")[0]
            if sizes and name != "wait_tensor":
                self.sent.append((name, max(sizes)))
        return function(*args, **(kwargs or {}))


def sent(setup: TrainingSetup, folder: Path, *, stage: int = 0, **train: Any) -> list[tuple[str, int]]:
    """Return what each of two processes sends in a step, the same in both: the third, as DDP settles in the second."""

    def take(process_group: ProcessGroup) -> list[tuple[str, int]]:
        loop = tiny_loop(setup, stage, process_group=process_group, **train)
        steps = loop.steps()
        next(steps), next(steps)
        with Collectives() as found:
            next(steps)
        return found.sent

    one, other = together(take, folder, size=2)
    assert one == other
    return [(name, size) for name, size in one]


def reports(setup: TrainingSetup) -> list[tuple[str, int]]:
    """Counts of predictions and tokens, before the forward pass; losses and requests, after the backward pass."""
    tasks = len(setup.model.tasks)
    return [("allreduce", 8 * (tasks + 1)), ("allreduce", 8 * (tasks + 3))]


def trained(setup: TrainingSetup, stage: int = 0) -> list[nn.Parameter]:
    setup.model.set_stage(setup.plans()[stage].stage)
    return [parameter for parameter in setup.model.parameters() if parameter.requires_grad]


def size(parameters: Any) -> int:
    return sum(parameter.nbytes for parameter in parameters)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("languages", [3, 100])
@pytest.mark.parametrize("method", ["hyperx", "hyper-adapters"])
def test_copies_of_a_hypernetwork_send_what_is_trained_once_in_a_step(world, tmp_path, method, languages, pieces):
    setup = tiny_setup(world, method, mixture=MIXED, languages=MANY[:languages])
    first, *gradients, last = sent(setup, tmp_path, grad_accum_steps=pieces)
    assert [first, last] == reports(setup)
    assert {name for name, _ in gradients} == {"allreduce"}
    assert sum(found for _, found in gradients) == size(trained(setup))


def bank_rows(setup: TrainingSetup, stage: int) -> tuple[int, int]:
    """Return the bytes of a language's rows, and the number of rows that are held, of all tables that are trained."""
    learnt = set(trained(setup, stage))
    tables = [p for m in setup.model.modules() if isinstance(m, Bank) for p in m.parameters() if p in learnt]
    return sum(p[:1].nbytes for p in tables), sum(map(len, tables))


def test_copies_of_a_bank_send_the_rows_that_a_step_uses(world, tmp_path):
    """And a byte for each row that is held, by which the processes find out which rows any of them used."""
    found = {}
    for count in (3, 100):
        setup = tiny_setup(world, "madx", mixture={"datasets_per_batch": 1}, languages=MANY[:count])
        (stage,) = [n for n, plan in enumerate(setup.plans()) if "language" in str(plan.stage.trains)]
        of_a_language, held = bank_rows(setup, stage)
        found[count] = sent(setup, tmp_path, stage=stage)
        first, flags, rows, last = found[count]
        assert [first, last] == reports(setup)
        assert flags == ("allreduce", held)
        assert rows == ("allreduce", of_a_language), "a batch of one language"
        assert held == count * held // count
    assert found[3][2] == found[100][2]
