"""Options that several commands have.

An option has one meaning in all commands: ``--output`` is a path, ``--format`` chooses a format, ``--json`` is a flag.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from polyloom.io.access import allow_paths

Checkpoint = Annotated[str | None, typer.Option(metavar="step-…", help="Checkpoint of the run. Default: the best one.")]
Split = Literal["test", "validation"]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure (PNG, SVG or PDF).")]
_Code = Annotated[
    list[Path] | None,
    typer.Option("--code", metavar="FILE", help="Python file that registers your own methods, tasks or readers."),
]
_AllowPath = Annotated[
    list[Path] | None,
    typer.Option("--allow-path", metavar="PATH", help="File or folder that an untrusted run may read."),
]
Command = Callable[..., None]


def extensible(function: Command) -> Command:
    """Add the option --code to a command; the files run before the command does."""

    def load(files: list[Path]) -> None:
        from polyloom.registry import load_code  # noqa: PLC0415

        for file in files:
            load_code(file)

    return _add_option(function, "code", _Code, load)


def opens_runs(function: Command) -> Command:
    """Add the options --code and --allow-path to a command that opens runs."""
    return _add_option(extensible(function), "allow_path", _AllowPath, allow_paths)


def split_names(names: str | None) -> list[str] | None:
    """Split names that are separated by commas."""
    return [name.strip() for name in names.split(",")] if names else None


def check_figure(path: Path | None) -> None:
    """Raise an error unless a figure can be drawn into a file of this name, before anything is computed."""
    if path is None:
        return
    from polyloom.errors import PolyloomError  # noqa: PLC0415
    from polyloom.figures.canvas import FORMATS, require_matplotlib  # noqa: PLC0415

    require_matplotlib("--figure")
    if path.suffix not in FORMATS:
        raise PolyloomError(f"--figure {path}: unknown format. Known: {', '.join(FORMATS)}.")


def _add_option(function: Command, name: str, annotation: Any, before: Callable[[list[Path]], None]) -> Command:
    """Add an option with paths to a command; `before` gets them before the command runs."""
    signature = inspect.signature(function)
    option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    @wraps(function)
    def command(*args: Any, **options: Any) -> None:
        before(options.pop(name) or [])
        function(*args, **options)

    # Typer reads the names of options from the signature, and their types from the annotations.
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, name: annotation}
    return command
