"""The command line of the experiments: ``python -m experiments``, in the root of the repository."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from experiments.storage import RESULTS
from experiments.studies import STUDIES, find_study
from polyloom.errors import PolyloomError
from polyloom.io.yaml import dump_yaml

CORES = os.cpu_count() or 1
app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Run the studies behind the result pages, and draw their tables and figures.

    Finished work is not repeated: a run that has a raw result is skipped. Interrupted runs resume.
    """


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(metavar="STUDY", help=f"One of {', '.join(STUDIES)}.")],
    *,
    runs: Annotated[Path, typer.Option(help="Folder for runs, vocabularies and backbones.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder for raw results.")] = RESULTS,
    workers: Annotated[int, typer.Option("--jobs", help="Runs at a time, of one thread each.")] = CORES,
    only: Annotated[str, typer.Option(help="Run only what has this in its name.")] = "",
    recipes: Annotated[bool, typer.Option("--recipes", help="Print the recipes for polyloom train and stop.")] = False,
) -> None:
    """Train and score all rows and seeds of studies."""
    from experiments.materials import make  # noqa: PLC0415 - slow imports
    from experiments.run import run_jobs  # noqa: PLC0415

    for study in map(find_study, names):
        every = list(study.jobs(runs / "materials"))
        chosen = [job for job in every if only in job.name]
        if not chosen:
            raise PolyloomError(
                f"--only {only}: {study.name} has no such row. It has {', '.join(j.name for j in every)}."
            )
        if recipes:
            sys.stdout.writelines(f"--- # {study.name}/{job.name}\n{dump_yaml(job.recipe)}" for job in chosen)
            continue
        for material in study.needs:
            make(material, runs / "materials", results)
        run_jobs(chosen, runs=runs, results=results, workers=workers)


@app.command("time")
def time_steps(
    name: Annotated[Literal["map", "lm"], typer.Argument(metavar="STUDY", help="map or lm.")] = "map",
    *,
    runs: Annotated[Path, typer.Option(help="Folder for runs, vocabularies and backbones.")] = Path("runs"),
) -> None:
    """Measure how long a step of every method of a study takes. Nothing else should run."""
    from experiments.materials import make  # noqa: PLC0415 - slow imports
    from experiments.run import use_one_thread  # noqa: PLC0415
    from experiments.timing import measure_lm, measure_map  # noqa: PLC0415

    use_one_thread()
    for material in find_study(name).needs:
        make(material, runs / "materials", RESULTS)
    (measure_lm if name == "lm" else measure_map)(runs / "materials")


@app.command()
def draw(
    *,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a table is out of date.")] = False,
    show: Annotated[str | None, typer.Option(metavar="TABLE", help="Print one table and stop.")] = None,
) -> None:
    """Draw the tables and figures of docs/results.md from the raw results."""
    from experiments import draw as drawing  # noqa: PLC0415 - reads all results

    if show is not None:
        sys.stdout.write(drawing.draw_table(show))
    elif check:
        drawing.check_page()
    else:
        drawing.draw_page()


if __name__ == "__main__":
    try:
        app(prog_name="python -m experiments")
    except PolyloomError as error:
        sys.exit(f"error: {error}")
