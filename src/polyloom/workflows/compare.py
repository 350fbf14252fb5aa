"""Compare two runs by the scores that are stored beside them."""

from pathlib import Path

from polyloom.evaluate.comparison import Comparison
from polyloom.evaluate.comparison import compare as compare_matrices
from polyloom.evaluate.matrix import Matrix
from polyloom.evaluate.saved import read_stored
from polyloom.rundir import RunDir
from polyloom.workflows.run import Run

Scored = Run | Matrix | str | Path


def compare(a: Scored, b: Scored, *, split: str = "test", seed: int = 0) -> Comparison:
    """Compare two runs on the sentences that both were scored on, with a paired bootstrap.

    Args:
        a: A run that was evaluated, its directory, or the result of `Run.evaluate`.
        b: Another.
        split: Which stored scores: ``test`` or ``validation``.
        seed: Seed of the bootstrap.
    """
    first, second = (_scores(scored, split) for scored in (a, b))
    return compare_matrices(first, second, seed=seed)


def _scores(scored: Scored, split: str) -> Matrix:
    if isinstance(scored, Matrix):
        return scored
    if isinstance(scored, Run):
        return read_stored(scored.path, split, checkpoint=scored.checkpoint.name)
    return read_stored(scored, split, checkpoint=RunDir(scored).best().name)
