"""``polyloom list``: list methods, tasks, backbones and recipes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from polyloom.cli.options import extensible
from polyloom.io.plain_json import to_json

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List methods, tasks, backbones and shipped recipes."
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
@extensible
def methods(*, as_json: AsJson = False) -> None:
    """List the methods with their papers.

    Example: polyloom list methods
    """
    from polyloom.methods import METHODS  # noqa: PLC0415 - imports torch

    _show({name: {"summary": kind.summary, "paper": kind.paper} for name, kind in METHODS.items()}, as_json=as_json)


@app.command()
@extensible
def tasks(*, as_json: AsJson = False) -> None:
    """List the tasks with their metrics.

    Example: polyloom list tasks
    """
    from polyloom.tasks import TASKS  # noqa: PLC0415 - imports torch

    _show({name: {"summary": task.summary} for name, task in TASKS.items()}, as_json=as_json)


@app.command()
@extensible
def backbones(*, as_json: AsJson = False) -> None:
    """List the supported model families by the model_type of their config.json.

    Example: polyloom list backbones --json
    """
    from polyloom.backbones import FAMILIES  # noqa: PLC0415 - imports transformers

    rows = {
        name: {"stacks": " + ".join(family.stacks), "placements": ", ".join(family.placements)}
        for name, family in FAMILIES.items()
    }
    _show(rows, as_json=as_json, separator="; ")


@app.command()
@extensible
def recipes(
    folder: Annotated[Path | None, typer.Argument(help="A folder of your own; the shipped recipes by default.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the shipped recipes, or those of a folder. polyloom init copies one; their names also work as they are.

    Example: polyloom list recipes
    """
    from polyloom.errors import ConfigError  # noqa: PLC0415
    from polyloom.recipes import shipped_recipes, summary  # noqa: PLC0415

    files = {str(path): path for path in sorted(folder.rglob("*.yaml"))} if folder else shipped_recipes()
    if not files:
        raise ConfigError(str(folder), ["no recipes (*.yaml) here. Name another folder: polyloom list recipes FOLDER."])
    _show({name: {"summary": summary(path)} for name, path in files.items()}, as_json=as_json)


def _show(rows: Mapping[str, Mapping[str, str]], *, as_json: bool, separator: str = "\n") -> None:
    if as_json:
        typer.echo(to_json(rows, indent=2))
        return
    from rich.console import Console  # noqa: PLC0415 - a sixth of a second
    from rich.padding import Padding  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    long = max(map(len, rows)) > 20  # then the description is printed below the name
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, row in rows.items():
        description = separator.join(row.values())
        if long:
            table.add_row(f"[bold]{name}[/]")
            table.add_row(Padding(description, (0, 0, 0, 4)))
        else:
            table.add_row(f"[bold]{name}[/]", description)
    Console(highlight=False).print(table)
