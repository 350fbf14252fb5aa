"""Average the last checkpoints of a run, which often translates better than any single one."""

from pathlib import Path

import torch

from polyloom.checkpoint import read_manifest, read_tensors, write_checkpoint
from polyloom.errors import TrainingError
from polyloom.rundir import RunDir
from polyloom.training.events import CheckpointsAveraged


def average_run(run: Path, into: Path, *, last: int) -> Path:
    """Write a run whose only checkpoint is the mean of the last checkpoints of another run.

    Args:
        run: Directory of the trained run.
        into: Directory of the new run.
        last: Number of checkpoints to average.

    Returns:
        The new checkpoint.
    """
    folder, new = RunDir(run), RunDir(into)
    # Only checkpoints that the recipe asks for by steps: those by time are at other steps on every machine.
    steps = folder.steps()
    if steps:
        scheduled = read_manifest(folder.checkpoint(steps[-1]))["training"]["state"]["scheduled"]
        steps = [step for step in steps if step in scheduled][-last:]
    if len(steps) < last:
        raise TrainingError(
            f"{run}: has {len(steps)} checkpoints, fewer than --last {last}. "
            f"Train with train.keep_last={last} and train.save_every, or average fewer: --last {max(len(steps), 1)}."
        )
    new.require_empty()
    # In double precision, rounding errors of the sums stay far below those of the stored type.
    sums: dict[str, torch.Tensor] = {}
    for step in steps:  # one checkpoint in memory at a time
        for name, tensor in read_tensors(folder.checkpoint(step)).items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    newest = read_manifest(folder.checkpoint(steps[-1]))
    dtypes = {name: tensor.dtype for name, tensor in read_tensors(folder.checkpoint(steps[-1])).items()}
    mean = {name: (total / last).to(dtypes[name]) for name, total in sums.items()}
    state = newest.pop("training")["state"] | {"best_step": None, "best_score": None}
    new.prepare()
    new.write(new.recipe, folder.recipe_text())
    new.note(CheckpointsAveraged(run=run.name, steps=steps).to_dict())
    return write_checkpoint(new.checkpoint(steps[-1]), mean, newest | {"averaged": steps}, training=({}, state))
