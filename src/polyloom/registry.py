"""Registries: tables of methods, tasks, blocks, families, readers and metrics that others can extend.

A package extends Polyloom through an entry point of the group ``polyloom``, which names a module::

    [project.entry-points.polyloom]
    mine = "my_package.polyloom_extension"

The module is imported when a registry is first asked for a name that it does not have, or for all its names. A single
file extends Polyloom through ``polyloom … --code FILE``. Both call `register_method`, `register_task` and the like.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from polyloom.errors import PolyloomError, suggest

T = TypeVar("T")
GROUP = "polyloom"
HINT = "If it is your own, name the file that registers it: --code FILE."
_loaded: set[str] = set()  # groups of entry points that were imported
_files: list[str] = []  # files that `load_code` ran


class Registry(MutableMapping[str, T]):
    """A table of named things of one kind.

    Entry points are imported only when a name is missing or all names are listed, because each may import torch.

    Args:
        kind: What it holds, for messages.
        items: Polyloom's own entries.
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


def load_extensions() -> None:
    """Import the modules that installed packages name as entry points, once per process."""
    if GROUP in _loaded:
        return
    _loaded.add(GROUP)  # first, because a module that registers something looks names up
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
    if str(path) in _files:
        return
    if not path.is_file():
        raise PolyloomError(f"--code {path}: there is no such file.")
    name = f"polyloom_code_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolyloomError(f"--code {path}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    _files.append(str(path))  # first, so that a file that fails half way is not run again over what it registered
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except PolyloomError:
        raise
    except Exception as error:
        raise PolyloomError(f"--code {path}: {type(error).__name__}: {error}") from error


def loaded_code() -> list[str]:
    """Return the files that `load_code` ran, so that another process can run them, too."""
    return list(_files)


def code_hashes(items: Iterable[Any]) -> list[str]:
    """Hash the files that define classes or functions, except those of Polyloom.

    With these hashes in its key, a cache is not read again after a user's code has changed.
    """
    files = set()
    for item in items:
        code = getattr(item, "func", item)  # a functools.partial has a function
        if not code.__module__.startswith("polyloom."):
            files.add(inspect.getfile(code if inspect.isroutine(code) or inspect.isclass(code) else type(item)))
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in sorted(files)]
