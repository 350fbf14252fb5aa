"""Decide which files a run may name.

A recipe names corpora and backbones by path. An untrusted run could name any file of the machine, and a report would
show its content. So a run reads its own folder, the folder of the user's corpora, and what the user allows.
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
    """Return the allowed paths, so that another process can allow them too."""
    return list(map(str, _allowed))


@dataclass(frozen=True)
class Access:
    """What a run, or a folder of adapters, may read."""

    place: Path
    """The run, for messages."""
    folders: tuple[Path, ...] | None = None
    """The folders that it may read, beside those that the user allowed. By default everything."""

    def require(self, path: Path) -> None:
        """Raise an error if a file or folder may not be read."""
        if self.folders is None:
            return
        allowed = [*(folder.resolve() for folder in self.folders), *_allowed]
        # Links are resolved first: one inside the folder may lead out of it.
        if not any(path.resolve().is_relative_to(folder) for folder in allowed):
            raise AccessError(
                f"{self.place}: names {path}, which is outside its folder, and it was not trained here. If it may read "
                f"that: --allow-path {path}"
            )
