"""The option --code of commands that can use methods, tasks, readers or metrics of the user."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from polyloom.registry import load_code

Code = Annotated[
    list[Path] | None,
    typer.Option("--code", metavar="FILE", help="Python file that registers your own methods, tasks or readers."),
]


def extensible(function: Callable[..., None]) -> Callable[..., None]:
    """Add the option --code to a command: the files that it names run before the command does."""
    signature = inspect.signature(function)
    code = inspect.Parameter("code", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Code)

    @wraps(function)
    def command(*args: Any, code: list[Path] | None, **options: Any) -> None:
        for file in code or ():
            load_code(file)
        function(*args, **options)

    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), code])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, "code": Code}
    return command
