"""The command line of the experiments: ``python -m experiments``, in the root of the repository."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments.jobs import experiments, jobs
from experiments.storage import RESULTS
from polyloom.errors import PolyloomError
from polyloom.io.yaml import dump_yaml

CORES = os.cpu_count() or 1
app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
Results = Annotated[Path, typer.Option(help="Folder for raw results.")]
Runs = Annotated[Path, typer.Option(help="Folder for runs (checkpoints and logs).")]
Workers = Annotated[int, typer.Option("--jobs", help="Runs at a time, of one thread each.")]
Only = Annotated[str, typer.Option(help="Run only what has this in its name.")]
Finished = Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")]


@app.callback()
def _root() -> None:
    """Run the experiments behind the result pages, analyse finished runs, and draw tables and figures.

    Finished work is not repeated: a run that has a raw result is skipped. Interrupted runs resume.
    """


@app.command()
def run(  # noqa: PLR0913 - options of a command
    names: Annotated[
        list[str], typer.Argument(metavar="EXPERIMENT", help=f"A YAML file, or one of {', '.join(experiments())}.")
    ],
    *,
    backbone: Annotated[str | None, typer.Option(help="A folder or Hub name to use instead of the plan's.")] = None,
    runs: Runs = Path("runs"),
    results: Results = RESULTS,
    workers: Workers = CORES,
    only: Only = "",
    recipes: Annotated[bool, typer.Option("--recipes", help="Print the recipes for polyloom train and stop.")] = False,
) -> None:
    """Train and score all rows and seeds of experiments."""
    from experiments.run import run_jobs  # noqa: PLC0415

    for name in names:
        every = list(jobs(name, runs=runs, backbone=backbone))
        chosen = [job for job in every if only in job.name]
        if not chosen:
            known = ", ".join(job.name for job in every)
            raise PolyloomError(f"--only {only}: {name} has no such row. It has {known}.")
        if recipes:
            sys.stdout.writelines(f"--- # {name}/{job.name}\n{dump_yaml(job.recipe)}" for job in chosen)
        else:
            run_jobs(chosen, runs=runs, results=results, workers=workers)


@app.command()
def layers(runs: Finished, *, results: Results = RESULTS) -> None:
    """Score tags with own weights in some layers only.

    The other layers have English weights.
    """
    _analyse("layers", runs, results)


@app.command()
def sources(runs: Finished, *, results: Results = RESULTS) -> None:
    """Measure translation losses with wrong sources."""
    _analyse("sources", runs, results)


@app.command()
def magnitudes(runs: Finished, *, results: Results = RESULTS) -> None:
    """Measure the RMS of generated weights."""
    _analyse("magnitudes", runs, results)


def _analyse(name: str, runs: list[Path], results: Path) -> None:
    from experiments.analyses import analyse  # noqa: PLC0415 - imports torch

    analyse(name, runs, results=results)


@app.command()
def add_languages(
    *, runs: Runs = Path("runs"), results: Results = RESULTS, workers: Workers = 2, only: Only = ""
) -> None:
    """Add languages to trained runs, and score donors.

    The runs are those of transfer and mt-analysis.
    """
    from experiments.add_languages import add_all  # noqa: PLC0415

    add_all(runs=runs, results=results, workers=workers, only=only)


@app.command()
def draw(
    *,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a table is out of date.")] = False,
    show: Annotated[str | None, typer.Option(metavar="TABLE", help="Print one table and stop.")] = None,
) -> None:
    """Draw tables and figures into docs."""
    from experiments import draw as drawing  # noqa: PLC0415 - imports torch

    if show is not None:
        sys.stdout.write(drawing.draw_table(show))
    elif check:
        drawing.check_pages()
    else:
        drawing.draw_pages()


if __name__ == "__main__":
    try:
        app(prog_name="python -m experiments")
    except PolyloomError as error:
        sys.exit(f"error: {error}")
