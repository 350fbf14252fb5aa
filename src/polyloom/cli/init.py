"""``polyloom init``: start from a shipped recipe."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    name: Annotated[str, typer.Argument(help="Name of a shipped recipe, such as mini/hyperx.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The new file.")] = Path("recipe.yaml"),
) -> None:
    """Copy a shipped recipe to a file of your own, to edit and train. polyloom list recipes shows all of them.

    Example: polyloom init mini/hyperx -o recipe.yaml
    """
    from polyloom.errors import ConfigError, suggest  # noqa: PLC0415
    from polyloom.recipes import shipped_recipes  # noqa: PLC0415

    recipes = shipped_recipes()
    if name not in recipes:
        raise ConfigError("init", [f"{name!r} is not a shipped recipe. {suggest(name, recipes, limit=40)}"])
    if output.exists():
        raise ConfigError(str(output), ["the file exists already. Choose another name with -o."])
    output.write_text(recipes[name].read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(str(output))
