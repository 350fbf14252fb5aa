"""Store scores in the directory of a run, and read them."""

from dataclasses import replace
from pathlib import Path

from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.io.plain_json import to_json
from polyloom.rundir import RunDir


def store(matrix: Matrix, run: str | Path, split: str, *, pivot: str | None = None) -> Path:
    """Store scores; earlier scores of the same checkpoint are kept, except those of conditions scored again."""
    directory = RunDir(run)
    path = directory.evaluation(f"{split}-through-{pivot}" if pivot else split)
    try:
        before = Matrix.read(path)
    except PolyloomError:  # there are none, or they cannot be read
        before = Matrix({})
    if before.run.get("checkpoint") == matrix.run.get("checkpoint"):
        results, refused = {**before.results, **matrix.results}, {**before.refused, **matrix.refused}
        matrix = replace(matrix, results=results, refused=refused)
    return directory.write(path, to_json(matrix.to_dict()) + "\n")


def read_stored(run: str | Path, split: str, *, checkpoint: str) -> Matrix:
    """Read stored scores; those of another checkpoint than the run's best one are refused."""
    path = RunDir(run).evaluation(split)
    command = f"polyloom evaluate {run}" + ("" if split == "test" else f" --on {split}")
    if not path.exists():
        raise PolyloomError(f"{run}: no scores on {split} here. Make them: {command}")
    matrix = Matrix.read(path)
    if matrix.run.get("checkpoint") != checkpoint:
        raise PolyloomError(
            f"{path}: scores of {matrix.run.get('checkpoint')}, but the run's checkpoint is now {checkpoint}. "
            f"Make them anew: {command}"
        )
    return matrix
