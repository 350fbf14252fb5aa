"""``polyloom train``: from a recipe to a run; begun, watched, and taken up again with the same command."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polyloom.cli.render.train import Tally


def train(
    recipe: Annotated[Path, typer.Argument(help="A YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run. An unfinished one goes on.")],
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves to RUN/tensorboard.")] = False,
) -> None:
    """Train what a recipe describes, or go on where the run was left.

    Prints the checkpoint to use; all else that is said goes to stderr and to RUN/log.jsonl. To stop, press Ctrl-C; the
    same command goes on from the newest checkpoint. With several processes: torchrun -m polyloom train ...

    Example: polyloom train recipe.yaml optim.lr=5e-4 -o runs/first
    """
    from polyloom.cli.render.train import Tally, watching  # noqa: PLC0415 - what follows imports torch
    from polyloom.config import load_recipe  # noqa: PLC0415
    from polyloom.rundir import RunDir  # noqa: PLC0415
    from polyloom.training.distributed import init_distributed  # noqa: PLC0415
    from polyloom.training.tensorboard import TensorBoardWriter  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    read = load_recipe(recipe, overrides or ())
    tally = Tally()
    with init_distributed() as process_group:
        board = TensorBoardWriter(RunDir(output).tensorboard) if tensorboard and process_group.is_main else None
        try:
            with watching(tally) as show:

                def on_event(event: Mapping[str, Any]) -> None:
                    show(event)
                    if board is not None:
                        board.on_event(event)

                path = train_recipe(read, output, process_group=process_group, on_event=on_event)
        except KeyboardInterrupt:
            if process_group.is_main:
                typer.echo(_interrupted(tally), err=True)
            raise typer.Exit(130) from None  # as shells say of a process that Ctrl-C ended
        finally:
            if board is not None:
                board.close()
        if process_group.is_main:
            typer.echo(str(path))


def _interrupted(tally: "Tally") -> str:
    saved = f"the newest checkpoint is of step {tally.saved}. To go on from there"
    then = saved if tally.saved else "nothing was saved yet. To begin again"
    return f"Interrupted at step {tally.total}; {then}:\n  {shlex.join(['polyloom', *sys.argv[1:]])}"
