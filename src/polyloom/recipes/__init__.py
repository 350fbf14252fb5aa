"""The recipes that Polyloom ships: wherever a recipe is expected, their names work like paths."""

from pathlib import Path

RECIPES = Path(__file__).parent


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name, such as ``mini/hyperx``."""
    return {str(path.relative_to(RECIPES).with_suffix("")): path for path in sorted(RECIPES.rglob("*.yaml"))}


def find_file(name: str | Path) -> Path:
    """Return a file of the user's, or else the shipped file of that name, with or without the ending ``.yaml``."""
    path = Path(name)
    if path.exists() or path.is_absolute():
        return path
    candidates = (RECIPES / path, RECIPES / f"{path}.yaml")
    return next((candidate for candidate in candidates if candidate.is_file()), path)


def summary(path: Path) -> str:
    """Return the first comment line of a recipe, which says what it is."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().removeprefix("#").strip()
