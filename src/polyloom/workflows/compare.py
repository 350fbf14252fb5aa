"""Compare runs by the scores that are stored beside them."""

from collections.abc import Sequence
from pathlib import Path

from polyloom.checkpoint import read_manifest
from polyloom.evaluate.comparison import Comparison
from polyloom.evaluate.comparison import compare as compare_matrices
from polyloom.evaluate.matrix import Matrix
from polyloom.evaluate.saved import read_stored
from polyloom.evaluate.transfer import Transfer, transfer_table
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


def transfer(
    runs: Sequence[str | Path], *, task: str | None = None, metric: str | None = None, split: str = "test"
) -> Transfer:
    """Tabulate the scores of evaluated runs of one method by source and target language, see `transfer_table`."""
    trained_on = {str(run): read_manifest(RunDir(run).best())["trained_on"] for run in runs}
    scored = {str(run): (trained_on[str(run)], _scores(run, split)) for run in runs}
    return transfer_table(scored, task=task, metric=metric)


def _scores(scored: Scored, split: str) -> Matrix:
    if isinstance(scored, Matrix):
        return scored
    if isinstance(scored, Run):
        return read_stored(scored.path, split, checkpoint=scored.checkpoint.name)
    return read_stored(scored, split, checkpoint=RunDir(scored).best().name)
