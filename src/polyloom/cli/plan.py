"""``polyloom plan``: what a recipe costs, before anything is spent."""

import json
from pathlib import Path
from typing import Annotated

import typer


def show_plan(
    recipe: Annotated[Path, typer.Argument(help="A YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """See what a recipe costs against every alternative, before anything is spent.

    Parameters, bytes per adapter, operations per token, and growth with the number of languages, for the same
    backbone, languages and tasks. Needs no weights, and no network where the recipe has a backbone.config.

    Example: polyloom plan recipes/hyper-adapters/ml50-base.yaml method.hidden_size=204
    """
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
    from polyloom.planning import plan  # noqa: PLC0415 - imports transformers

    made = plan(load_recipe(recipe, overrides or ()))
    if as_json:
        typer.echo(json.dumps(made.to_dict(), indent=2, ensure_ascii=False))
        return
    from rich.console import Console  # noqa: PLC0415

    from polyloom.cli.plan_view import render  # noqa: PLC0415

    render(made, Console(highlight=False, markup=False))
