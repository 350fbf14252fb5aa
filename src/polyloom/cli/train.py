"""``polyloom train``: train a recipe, or resume an unfinished run."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from polyloom.cli.render.train import TrainingProgress
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
    press Ctrl-C; the same command resumes from the newest checkpoint. With several processes: torchrun -m polyloom
    train ...

    Example: polyloom train recipe.yaml optim.lr=5e-4 -o runs/first
    """
    from polyloom.cli.render.train import TrainingProgress, show_progress  # noqa: PLC0415
    from polyloom.config import load_recipe  # noqa: PLC0415
    from polyloom.rundir import RunDir  # noqa: PLC0415
    from polyloom.training.distributed import init_distributed  # noqa: PLC0415
    from polyloom.training.tensorboard import TensorBoardWriter  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    read = load_recipe(recipe, overrides or ())
    progress = TrainingProgress()
    with init_distributed() as process_group:
        board = TensorBoardWriter(RunDir(output).tensorboard) if tensorboard and process_group.is_main else None
        try:
            with show_progress(progress) as show:

                def on_event(event: "Event") -> None:
                    show(event)
                    if board is not None:
                        board.on_event(event)

                path = train_recipe(read, output, process_group=process_group, on_event=on_event)
        except KeyboardInterrupt:
            if process_group.is_main:
                typer.echo(_interrupted(progress), err=True)
            raise typer.Exit(130) from None  # the exit code of a process that Ctrl-C ended
        finally:
            if board is not None:
                board.close()
        if process_group.is_main:
            typer.echo(str(path))


def _interrupted(progress: "TrainingProgress") -> str:
    saved = f"the newest checkpoint is of step {progress.saved}. To resume from there"
    then = saved if progress.saved else "no checkpoint was written yet. To start again"
    return f"Interrupted at step {progress.total}; {then}:\n  {shlex.join(['polyloom', *sys.argv[1:]])}"
