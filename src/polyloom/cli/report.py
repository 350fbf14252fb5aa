"""``polyloom report``: an HTML page about one run or several."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyloom.cli.evaluate import Split
from polyloom.io.atomic import write_text_atomic


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs. The first run is compared with each of the others.")
    ],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("report.html"),
    on: Annotated[Split, typer.Option(help="Which scores to show.")] = "test",
    examples: Annotated[int, typer.Option(min=0, help="Example sentences per task; 0 loads no model.")] = 3,
) -> None:
    """Write an HTML report: which run is better, scores, comparison, examples, learning curves, probes, settings.

    The report is one file without scripts or network requests. It names the command behind each table and figure.

    Example: polyloom report runs/hyperx runs/madx -o report.html
    """
    from polyloom.report.page import make_report  # noqa: PLC0415 - imports torch

    def progress(doing: str) -> None:
        if sys.stderr.isatty():
            typer.echo(doing, err=True)

    page = make_report(runs, output=output, split=on, examples=examples, progress=progress)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(output, page)
    typer.echo(output)
