"""Tiny runs whose every part can be looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyloom.config import load_recipe
from polyloom.data.mixture import Pick
from polyloom.rundir import RunDir
from polyloom.training.distributed import ProcessGroup, full_tensor
from polyloom.training.loop import TrainLoop
from polyloom.training.trainer import Trainer
from polyloom.workflows.train import TrainingSetup, prepare_training
from tests.tiny_run import tiny_recipe

METHODS = ("full", "madx", "badx", "multilingual", "hyperx", "psf")
# Adam divides by the size of a gradient. Where that is nothing but rounding (a key's bias in attention), the direction
# of a step is chance. Runs that may differ in rounding are therefore compared with an eps above rounding.
CALM = {"lr": 2e-3, "eps": 1e-4}


def tiny_setup(folder: Path, method: str | Mapping[str, Any] = "hyperx", **sections: Any) -> TrainingSetup:
    """A recipe with its corpora read and its model built."""
    train = {"steps": 6, "rows_per_batch": 8, "save_every": 2} | sections.pop("train", {})
    optim = {"lr": 5e-3, "warmup_steps": 2} | sections.pop("optim", {})
    tasks = ("pos", "ner") if method == "psf" else ("mlm", "pos", "ner")
    return prepare_training(load_recipe(tiny_recipe(folder, method, tasks=tasks, train=train, optim=optim, **sections)))


def tiny_fit(setup: TrainingSetup, run: Path, *, process_group: ProcessGroup | None = None, **more: Any) -> Trainer:
    """A run of all stages, without validation unless it is asked for."""
    about = {"trained_on": setup.trained_on, "tokenizer": setup.tokenizer.identity}
    parts: dict[str, Any] = {
        "tokenizer": setup.tokenizer,
        "folder": RunDir(run),
        "process_group": process_group or ProcessGroup(),
        "about": about,
    }
    return Trainer(setup.model, setup.plans, **(parts | more))


def tiny_loop(
    setup: TrainingSetup, stage: int = 0, *, process_group: ProcessGroup | None = None, **train: Any
) -> TrainLoop:
    """One stage, to be taken step by step; `train` are settings that are different."""
    plan = setup.plans[stage]
    plan = replace(plan, train=replace(plan.train, **({"read_ahead": 0} | train)))  # so that `record` sees one step
    return TrainLoop(setup.model, plan, tokenizer=setup.tokenizer, process_group=process_group or ProcessGroup())


def record(loop: TrainLoop) -> list[list[Pick]]:
    """From now on, remember the examples of every micro-batch of a step that counts."""
    seen: list[list[Pick]] = []
    batch, batches = loop._batch, loop.batches

    def remember(picks: Sequence[Pick]) -> Any:
        seen.append(list(picks))
        return batch(picks)

    def drop_those_that_do_not_count(index: int) -> Any:
        step_batches = batches(index)
        for micro_batch in step_batches.micro_batches:
            if micro_batch.is_placeholder:
                seen[-1] = []
        return step_batches

    loop._batch, loop.batches = remember, drop_those_that_do_not_count  # type: ignore[method-assign]
    return seen


def rejoined(parts: Sequence[Sequence[Pick]]) -> list[list[Any]]:
    """A step's examples from those of its pieces, in an order that does not depend on how they were dealt."""
    return sorted([pick.dataset, pick.index, pick.key] for pick in chain.from_iterable(parts))


def saved(run: Path) -> int:
    """The step of the newest checkpoint that can be read, of which every hash is right."""
    latest = RunDir(run).latest()
    return latest.state["total"] if latest else 0


def weights(setup: TrainingSetup) -> dict[str, Tensor]:
    """A copy of all parameters, gathered where they are sharded."""
    return {name: full_tensor(parameter).detach().clone() for name, parameter in setup.model.named_parameters()}


def state(loop: TrainLoop) -> dict[str, Tensor]:
    """A copy of the optimizer's state."""
    return {name: tensor.clone() for name, tensor in loop.optimizer.state().items()}


def changed(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> set[str]:
    """Names of tensors that differ in any bit (or are in one only)."""
    both = one.keys() & other.keys()
    return (one.keys() ^ other.keys()) | {name for name in both if not torch.equal(one[name], other[name])}


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of any number."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
