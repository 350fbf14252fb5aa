"""Registries: tables of methods, tasks, families, readers and metrics that other packages and user files can extend.

A package extends Polyloom through an entry point of the group ``polyloom``, which names a module::

    [project.entry-points.polyloom]
    mine = "my_package.polyloom_extension"

The module is imported when a registry is first asked for a name that it does not have, or for all its names. A single
file extends Polyloom through ``polyloom … --code FILE``. Both call `register_method`, `register_task` and the like.
"""

import importlib.util
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from polyloom.errors import PolyloomError, suggest

T = TypeVar("T")
GROUP = "polyloom"
_loaded: set[str] = set()


class Registry(MutableMapping[str, T]):
    """A table of named things of one kind.

    Args:
        kind: What it holds, for messages.
        items: What Polyloom brings.
    """

    def __init__(self, kind: str, items: Iterable[tuple[str, T]] = ()) -> None:
        self.kind = kind
        self._items = dict(items)

    def register(self, name: str, item: T) -> T:
        """Add an item under a new name.

        Raises:
            PolyloomError: The name is taken.
        """
        if name in self._items:
            raise PolyloomError(f"{self.kind} {name!r} is registered already.")
        self._items[name] = item
        return item

    def find(self, name: str) -> T:
        """Return the item of a name, or raise an error that lists the known names."""
        if name in self:
            return self[name]
        raise PolyloomError(f"unknown {self.kind} {name!r}. {suggest(name, self)} {HINT}")

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            load_extensions()
        return self._items[name]

    def __setitem__(self, name: str, item: T) -> None:
        self.register(name, item)

    def __delitem__(self, name: str) -> None:
        del self._items[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._items:
            load_extensions()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        load_extensions()
        return iter(self._items)

    def __len__(self) -> int:
        load_extensions()
        return len(self._items)


HINT = "If it is your own, name the file that registers it: --code FILE."


def load_extensions() -> None:
    """Import the modules that installed packages name as entry points, once per process."""
    if GROUP in _loaded:
        return
    _loaded.add(GROUP)
    for entry_point in entry_points(group=GROUP):
        try:
            entry_point.load()
        except Exception as error:
            raise PolyloomError(
                f"extension {entry_point.name!r} ({entry_point.value}) cannot be imported: {error!r}. "
                "Repair or uninstall the package that brings it."
            ) from error


def load_code(path: str | Path) -> None:
    """Run a Python file that registers things; the same file runs once.

    Args:
        path: The file. Its code runs with the rights of this process.
    """
    path = Path(path).resolve()
    if str(path) in _loaded:
        return
    if not path.is_file():
        raise PolyloomError(f"--code {path}: there is no such file.")
    name = f"polyloom_code_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolyloomError(f"--code {path}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    _loaded.add(str(path))
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except PolyloomError:
        raise
    except Exception as error:
        raise PolyloomError(f"--code {path}: {type(error).__name__}: {error}") from error
