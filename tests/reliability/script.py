"""What launchers start: train a recipe in a folder. ``python -m tests.reliability.script RECIPE FOLDER [DIE_AT]``.

With a step to die at, the last process kills itself there, the first time.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from polyloom.config import load_recipe
from polyloom.training.distributed import ProcessGroup, init_distributed
from polyloom.training.events import StepEvent
from polyloom.training.loop import TrainLoop
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe


def die_once(process_group: ProcessGroup, run: Path, step: int) -> None:
    """Let this process be killed when it is about to take a step."""
    take, mark = TrainLoop.take, run / "died"

    def take_or_die(loop: TrainLoop, index: int, *arguments: Any, **options: Any) -> StepEvent:
        if process_group.rank == process_group.size - 1 and index == step and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return take(loop, index, *arguments, **options)

    TrainLoop.take = take_or_die  # type: ignore[method-assign, assignment]


def digests(run: Path) -> dict[str, str]:
    """Hashes of what was trained, and of the weights generated for every condition."""
    model = Run.load(run).model
    made = hashlib.sha256()
    for task in model.tasks:
        for language in model.method.languages:
            with torch.no_grad():
                for block in model.weights([f"{task}/{language}"]).blocks:
                    for tensor in block.tensors.values():
                        made.update(tensor.contiguous().numpy().tobytes())
    trained = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return {"trained": trained.hexdigest(), "made": made.hexdigest()}


def main(recipe: str, run: str, die_at: str = "-1") -> None:
    """Train; the leader says what came out."""
    torch.set_num_threads(1)
    with init_distributed() as process_group:
        die_once(process_group, Path(run), int(die_at))
        train_recipe(load_recipe(recipe), Path(run), process_group=process_group)
    if process_group.is_main:
        (Path(run) / "digests.json").write_text(json.dumps(digests(Path(run)) | {"size": str(process_group.size)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
