"""``polyloom report``: one page that shows a run, or several side by side."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyloom.cli.evaluate import Split


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; the others are compared with the first.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
    on: Annotated[Split, typer.Option(help="Which scores.")] = "test",
    examples: Annotated[int, typer.Option(min=0, help="Sentences to look at, of each task; 0 loads no model.")] = 3,
) -> None:
    """Write a page with scores, comparison, examples, learning curves, mixture, audit and probes of runs.

    It is one file without scripts that loads nothing, and names the command that each of its figures comes from.

    Example: polyloom report runs/hyperx runs/madx -o report.html
    """
    from polyloom.workflows.report import write_report  # noqa: PLC0415 - imports torch

    def progress(doing: str) -> None:
        if sys.stderr.isatty():
            typer.echo(doing, err=True)

    typer.echo(write_report(runs, output, split=on, examples=examples, progress=progress))
