"""``polyloom config``: show, check, schema."""

from pathlib import Path
from typing import Annotated

import typer

from polyloom.cli.options import extensible
from polyloom.errors import ConfigError
from polyloom.io.plain_json import to_json

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and check recipes; print their JSON schema.")


@app.command()
@extensible
def show(
    recipe: Annotated[Path, typer.Argument(help="Recipe: a YAML file or the name of a shipped one.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
) -> None:
    """Print a recipe with every setting, defaults included.

    Example: polyloom config show hyperx/mbert-base optim.lr=5e-5
    """
    from polyloom.config import load_recipe, resolved  # noqa: PLC0415 - imports torch
    from polyloom.io.yaml import dump_yaml  # noqa: PLC0415

    typer.echo(dump_yaml(resolved(load_recipe(recipe, overrides or ()))), nl=False)


@app.command()
@extensible
def check(
    recipes: Annotated[list[Path], typer.Argument(help="YAML files.")],
) -> None:
    """Check recipes. All mistakes are reported at once; exits with 1 if there are any.

    Example: polyloom config check recipe.yaml
    """
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch

    wrong = False
    for recipe in recipes:
        try:
            load_recipe(recipe)
        except ConfigError as error:
            wrong = True
            typer.echo(str(error), err=True)
        else:
            typer.echo(f"{recipe}: ok")
    if wrong:
        raise typer.Exit(1)


@app.command()
@extensible
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check YAML.

    Example: polyloom config schema > recipe.schema.json
    """
    from polyloom.config import recipe_schema  # noqa: PLC0415 - imports torch

    typer.echo(to_json(recipe_schema(), indent=2))
