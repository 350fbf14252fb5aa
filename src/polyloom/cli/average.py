"""``polyloom average``: average the last checkpoints of a run."""

from pathlib import Path
from typing import Annotated

import typer


def average(
    run: Annotated[Path, typer.Argument(help="Run with several checkpoints (train.keep_last).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the new run.")],
    *,
    last: Annotated[int, typer.Option(min=1, help="Number of checkpoints, the newest ones.")] = 5,
) -> None:
    """Average the parameters of the last checkpoints of a run and write a new run.

    Example: polyloom average runs/mt -o runs/mt-average --last 5
    """
    from polyloom.training.average import average_run  # noqa: PLC0415 - imports torch

    typer.echo(average_run(run, output, last=last))
