"""``polyloom average``: the mean of a run's last checkpoints."""

from pathlib import Path
from typing import Annotated

import typer


def average(
    run: Annotated[Path, typer.Argument(help="Folder of a run that kept several checkpoints (train.keep_last).")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the new run.")],
    *,
    last: Annotated[int, typer.Option(min=1, help="How many checkpoints, counted from the newest.")] = 5,
) -> None:
    """Average the last checkpoints of a run into a new one, which answers and is scored like any other.

    Example: polyloom average runs/mt -o runs/mt-average --last 5
    """
    from polyloom.training.average import average_run  # noqa: PLC0415 - imports torch

    typer.echo(average_run(run, output, last=last))
