"""What the processes of a run send one another in a step: counted at the collectives, in bytes."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polyloom.config import load_recipe
from polyloom.nn.tables import Bank
from polyloom.training.distributed import ProcessGroup
from polyloom.workflows.planning.memory import shard_bytes
from polyloom.workflows.train import TrainingSetup, prepare_training
from tests.reliability.forks import together
from tests.reliability.tiny import tiny_loop, tiny_setup
from tests.tiny_decoder import decoder_recipe
from tests.tiny_run import LANGUAGES

MIXED = {"datasets_per_batch": 4}
MANY = ["aa", "bb", "cc", *(f"x{number}" for number in range(97))]


class Collectives(TorchDispatchMode):
    """Notes the name and the bytes of every collective: of the largest of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # which asks again with its local tensors
            return NotImplemented
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
        found = Collectives()
        with found:
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
    setup.model.set_stage(setup.plans[stage].stage)
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
        (stage,) = [n for n, plan in enumerate(setup.plans) if "language" in str(plan.stage.trains)]
        of_a_language, held = bank_rows(setup, stage)
        found[count] = sent(setup, tmp_path, stage=stage)
        first, flags, rows, last = found[count]
        assert [first, last] == reports(setup)
        assert flags == ("allreduce", held)
        assert rows == ("allreduce", of_a_language), "a batch of one language"
    assert found[3][2] == found[100][2]


def gathered_and_scattered(
    setup: TrainingSetup, stage: int, copied: set[nn.Parameter], pieces: int
) -> tuple[list[int], list[int]]:
    """Return what FSDP gathers and scatters in a step, by a formula.

    Each piece gathers all that is not in layers once, and each layer twice: for the forward and the backward pass. Of
    what is trained, it scatters the gradients.
    """
    learnt, model = set(trained(setup, stage)), setup.model
    layers = [set(layer.parameters()) for layer in model.backbone.layers]
    root = set(model.parameters()) - copied - set().union(*layers)
    gathered = [2 * shard_bytes(group, 2) for group in (root, *layers, *layers)]
    scattered = [2 * shard_bytes(group & learnt, 2) for group in (root, *layers) if group & learnt]
    return pieces * gathered, pieces * scattered


def by_name(found: list[tuple[str, int]], name: str) -> list[int]:
    return sorted(size for kind, size in found if kind == name)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(("method", "stage"), [("hyperx", 0), ("madx", 1)])
def test_shards_gather_layers_twice_and_scatter_what_is_trained(world, tmp_path, method, stage, pieces):
    """These methods train the backbone's head, so all is sharded but banks, whose rows are sent as DDP sends them."""
    setup = tiny_setup(world, method, mixture=MIXED)
    banks = {p for m in setup.model.modules() if isinstance(m, Bank) for p in m.parameters()}
    found = sent(setup, tmp_path, stage=stage, strategy="fsdp", grad_accum_steps=pieces)
    gathered, scattered = gathered_and_scattered(setup, stage, banks, pieces)
    assert by_name(found, "allgather_base") == sorted(gathered)
    assert by_name(found, "reduce_scatter_base") == sorted(scattered)
    of_a_language, held = bank_rows(setup, stage)
    rows_sent = [held, len(LANGUAGES) * of_a_language] if held else []
    assert by_name(found, "allreduce") == sorted([size for _, size in reports(setup)] + rows_sent)
    norms = by_name(found, "all_reduce")
    assert len(norms) == bool(scattered)
    assert sum(norms) <= 4 * len(trained(setup, stage)), "of the sharded parameters that this step has a gradient for"


@pytest.mark.parametrize("pieces", [1, 2])
def test_shards_of_a_frozen_backbone_send_gradients_of_what_is_learnt_as_copies_do(tmp_path, pieces):
    setup = prepare_training(load_recipe(decoder_recipe(tmp_path)))
    copied = {*setup.model.method.parameters(), *setup.model.heads.parameters()}
    found = sent(setup, tmp_path / "fsdp", strategy="fsdp", grad_accum_steps=pieces)
    copies = sent(setup, tmp_path / "ddp", strategy="ddp", grad_accum_steps=pieces)
    gathered, scattered = gathered_and_scattered(setup, 0, copied, pieces)
    assert by_name(found, "allgather_base") == sorted(gathered)
    assert not scattered
    assert not by_name(found, "reduce_scatter_base")
    assert sum(by_name(found, "allreduce")) == sum(by_name(copies, "allreduce"))
