"""``polyloom report``: one page that shows a run, or several side by side."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from polyloom.cli.evaluate import Split
from polyloom.io.atomic import write_text_atomic


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
    from polyloom.report.page import make_report  # noqa: PLC0415 - imports torch

    def progress(doing: str) -> None:
        if sys.stderr.isatty():
            typer.echo(doing, err=True)

    page = make_report(runs, output=output, split=on, examples=examples, progress=progress)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(output, page)
    typer.echo(output)
