"""``polyloom report``: an HTML page about one run or several."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyloom.cli.options import Split


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs. The first run is compared with each of the others.")
    ],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    split: Annotated[Split, typer.Option(help="Which scores to show.")] = "test",
    num_examples: Annotated[int, typer.Option(min=0, help="Example sentences per task; 0 loads no model.")] = 3,
) -> None:
    """Write an HTML report: which run is better, scores, comparison, examples, learning curves, probes, settings.

    The report is one file without scripts or network requests. It names the command behind each table and figure.

    Example: polyloom report runs/hyperx runs/madx -o report.html
    """
    from polyloom.workflows.report import write_report  # noqa: PLC0415 - imports torch

    def progress(doing: str) -> None:
        if sys.stderr.isatty():
            typer.echo(doing, err=True)

    typer.echo(write_report(runs, output, split=split, num_examples=num_examples, progress=progress))
