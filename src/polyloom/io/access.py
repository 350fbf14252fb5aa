"""Decide which files a run may name.

A recipe names corpora and backbones by path. A run of a stranger could name any file of the machine, and a report would
show its content. So it reads its own folder, the folder of the user's corpora, and what the user allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polyloom.errors import AccessError

_allowed: list[Path] = []


def allow_paths(paths: Iterable[str | Path]) -> None:
    """Allow runs to read files and folders, from now on in this process."""
    _allowed.extend(Path(path).resolve() for path in paths)


def allowed_paths() -> list[str]:
    """Return what was allowed, for another process to allow it, too."""
    return list(map(str, _allowed))


@dataclass(frozen=True)
class Access:
    """What a run, or a folder of adapters, may read.

    Attributes:
        place: The run, for messages.
        folders: The folders that it may read, beside those that the user allowed. Default: everything.
    """

    place: Path
    folders: tuple[Path, ...] | None = None

    def require(self, path: Path) -> None:
        """Raise an error if a file or folder may not be read."""
        if self.folders is None:
            return
        real = path.resolve()
        if not any(real.is_relative_to(folder) for folder in (*(f.resolve() for f in self.folders), *_allowed)):
            raise AccessError(
                f"{self.place}: names {path}, which is outside its folder, and it was not trained here. If it may read "
                f"that: --allow-path {path}"
            )
