"""``polyloom train``: train a recipe, or resume an unfinished run."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyloom.cli.render.train import TrainingProgress
    from polyloom.rundir import RunDir
    from polyloom.training.distributed import ProcessGroup
    from polyloom.training.events import Event


def train(
    recipe: Annotated[Path, typer.Argument(help="A YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the run. An unfinished run is resumed.")],
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves to RUN/tensorboard.")] = False,
) -> None:
    """Train a recipe, or resume an unfinished run.

    Prints the checkpoint to use. Progress is shown on stderr, and every event is written to RUN/log.jsonl. To stop,
    press Ctrl-C or send SIGTERM: the run is saved after the current step and ends with exit code 130 or 143; the same
    command resumes it. A second signal ends it at once. With several processes: torchrun -m polyloom train ...

    Example: polyloom train recipe.yaml optim.lr=5e-4 -o runs/first
    """
    from polyloom.cli.render.train import TrainingProgress, show_progress  # noqa: PLC0415
    from polyloom.config import load_recipe  # noqa: PLC0415
    from polyloom.rundir import RunDir  # noqa: PLC0415
    from polyloom.training.distributed import init_distributed  # noqa: PLC0415
    from polyloom.training.stopping import StopSignals  # noqa: PLC0415
    from polyloom.training.tensorboard import TensorBoardWriter  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    settings = load_recipe(recipe, overrides or ())
    progress = TrainingProgress()
    with init_distributed() as process_group:
        notice = _first_signal if process_group.is_main else lambda _: None
        stop = StopSignals(launched=process_group.size > 1, on_first=notice)
        board = TensorBoardWriter(RunDir(output).tensorboard) if tensorboard and process_group.is_main else None
        try:
            with show_progress(progress) as show:

                def on_event(event: "Event") -> None:
                    show(event)
                    if board is not None:
                        board.on_event(event)

                path = train_recipe(settings, output, process_group=process_group, on_event=on_event, stop=stop)
        except (KeyboardInterrupt, SystemExit) as end:
            if process_group.is_main:
                typer.echo(_interrupted(progress, RunDir(output), process_group), err=True)
            # Shells give these exit codes to processes that SIGINT and SIGTERM ended.
            raise typer.Exit(130 if isinstance(end, KeyboardInterrupt) else 143) from None
        finally:
            if board is not None:
                board.close()
        if process_group.is_main:
            typer.echo(str(path))


def _first_signal(name: str) -> None:
    # Not by print, whose buffer may be in use: a signal arrives at any time.
    os.write(2, f"\n{name}: saving after this step. A second signal ends the run at once.\n".encode())


def _interrupted(progress: "TrainingProgress", directory: "RunDir", process_group: "ProcessGroup") -> str:
    if not progress.saved:
        then = "no checkpoint was written yet. To start again"
    elif progress.saved < progress.total:
        then = f"the newest checkpoint is of step {progress.saved}. To resume from there"
    else:
        then = f"it is saved in {directory.checkpoint(progress.saved)}. To resume from there"
    with_launcher = " with the same launcher" if process_group.size > 1 else ""
    command = shlex.join(["polyloom", *sys.argv[1:]])
    return f"Interrupted at step {progress.total}; {then}{with_launcher}:\n  {command}"
