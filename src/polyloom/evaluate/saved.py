"""Store scores in the directory of a run, and read them."""

from dataclasses import replace
from pathlib import Path

from polyloom.errors import CheckpointError, PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.io.plain_json import to_json
from polyloom.rundir import RunDir


def store(matrix: Matrix, run: str | Path, split: str, *, pivot: str | None = None) -> Path:
    """Store scores; earlier scores of the same checkpoint are kept, except those of conditions scored again.

    Scores of a checkpoint that is not the run's best one go to a file of their own. Processes that store at the same
    time wait for one another.
    """
    directory, checkpoint = RunDir(run), matrix.run.get("checkpoint")
    path = _path(directory, f"{split}-through-{pivot}" if pivot else split, checkpoint)
    with directory.updating(path):
        try:
            before = Matrix.read(path)
        except PolyloomError:  # there are none, or they cannot be read
            before = Matrix({})
        # Scores of another checkpoint are dropped: a table with both would compare what no model predicts.
        if before.run.get("checkpoint") == checkpoint:
            results, refused = {**before.results, **matrix.results}, {**before.refused, **matrix.refused}
            matrix = replace(matrix, results=results, refused=refused)
        return directory.write(path, to_json(matrix.to_dict()) + "\n")


def _path(directory: RunDir, name: str, checkpoint: object) -> Path:
    try:
        best = directory.best().name if directory.steps() else checkpoint
    except CheckpointError:  # it is damaged, so another one was chosen
        best = None
    return directory.evaluation(name if checkpoint == best else f"{name}-{checkpoint}")


def read_stored(run: str | Path, split: str, *, checkpoint: str) -> Matrix:
    """Read the stored scores of a checkpoint; scores of others are refused."""
    path = _path(RunDir(run), split, checkpoint)
    command = f"polyloom evaluate {run}" + ("" if split == "test" else f" --split {split}")
    command += "" if path == RunDir(run).evaluation(split) else f" --checkpoint {checkpoint}"
    if not path.exists():
        raise PolyloomError(f"{run}: no scores on {split} here. Make them: {command}")
    matrix = Matrix.read(path)
    if matrix.run.get("checkpoint") != checkpoint:
        raise PolyloomError(
            f"{path}: scores of {matrix.run.get('checkpoint')}, but the run's checkpoint is now {checkpoint}. "
            f"Make them anew: {command}"
        )
    return matrix
