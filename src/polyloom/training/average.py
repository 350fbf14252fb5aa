"""The mean of a run's last checkpoints, which often translates better than any one of them."""

from pathlib import Path

import torch

from polyloom.checkpoint import read_manifest, read_tensors, write_checkpoint
from polyloom.errors import TrainingError
from polyloom.rundir import RunDir


def average_run(run: Path, into: Path, *, last: int) -> Path:
    """Write a run whose only checkpoint is the mean of another's last ones; returns that checkpoint."""
    folder, new = RunDir(run), RunDir(into)
    steps = folder.steps()[-last:]
    if len(steps) < last:
        raise TrainingError(
            f"{run}: {len(steps)} checkpoints, but {last} are to be averaged. "
            f"Train with train.keep_last={last} and train.save_every, or average fewer: --last {max(len(steps), 1)}."
        )
    new.require_empty()
    sums: dict[str, torch.Tensor] = {}
    for step in steps:  # one at a time: a run may be large
        for name, tensor in read_tensors(folder.checkpoint(step)).items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    newest = read_manifest(folder.checkpoint(steps[-1]))
    kinds = {name: tensor.dtype for name, tensor in read_tensors(folder.checkpoint(steps[-1])).items()}
    mean = {name: (total / last).to(kinds[name]) for name, total in sums.items()}
    state = newest.pop("training")["state"] | {"best_step": None, "best_score": None}
    new.prepare()
    new.write(new.recipe, folder.recipe.read_text(encoding="utf-8"))
    new.note({"event": "averaged", "run": run.name, "steps": steps})
    return write_checkpoint(new.checkpoint(steps[-1]), mean, newest | {"averaged": steps}, training=({}, state))
