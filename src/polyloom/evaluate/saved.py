"""Scores beside the run they belong to: ``RUN/evaluations/test.json``, with the parts of every sentence."""

import json
from dataclasses import replace
from pathlib import Path

from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import Matrix
from polyloom.io.atomic import write_text_atomic

FOLDER = "evaluations"


def store(matrix: Matrix, run: Path, split: str) -> Path:
    """Write a matrix; what was measured before stays if it is of the same checkpoint and was not measured anew."""
    path = run / FOLDER / f"{split}.json"
    path.parent.mkdir(exist_ok=True)
    try:
        before = Matrix.read(path)
    except PolyloomError:  # none yet, or of no use
        before = Matrix({})
    if before.run.get("checkpoint") == matrix.run.get("checkpoint"):
        results, refused = {**before.results, **matrix.results}, {**before.refused, **matrix.refused}
        matrix = replace(matrix, results=results, refused=refused)
    write_text_atomic(path, json.dumps(matrix.to_dict(), ensure_ascii=False) + "\n")
    return path


def read_stored(run: Path, split: str, *, checkpoint: str) -> Matrix:
    """Read what `store` wrote, unless it is of another checkpoint than the one that the run now answers with."""
    path = run / FOLDER / f"{split}.json"
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
