"""Notes in the cache about this machine: where folders are, and what was written or tried here.

Exported adapters name a local backbone by its last name alone, so that they show no path of the machine that made them.
That machine finds the folder by its note.
"""

import hashlib
from contextlib import suppress
from pathlib import Path

from polyloom.io.atomic import write_text_atomic
from polyloom.io.cache import cache_folder

_LOCAL = "./"  # begins the names of folders that are known by their last name alone


def local_name(name: str) -> str:
    """Return a name without the path of this machine: ``./last`` for a folder, any other name as it is."""
    return _LOCAL + Path(name).resolve().name if Path(name).is_dir() or Path(name).is_absolute() else name


def last_name(name: str) -> str:
    """Return the name of a folder without its path, any other name as it is."""
    return local_name(name).removeprefix(_LOCAL)


def is_local(name: str) -> bool:
    """Return whether a name is one that `local_name` returns for a folder."""
    return name.startswith(_LOCAL)


def note(key: str, text: str = "") -> None:
    """Note something about what a key identifies; a cache that cannot be written is ignored."""
    path = _path(key)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, text)


def is_noted(key: str) -> bool:
    """Return whether something was noted about a key."""
    return _path(key).is_file()


def note_folder(key: str, name: str) -> None:
    """Note where the folder of a key is; a name that is no folder is ignored."""
    if Path(name).is_dir():
        note(key, str(Path(name).resolve()))


def noted_folder(key: str) -> Path | None:
    """Return the folder of a key, or ``None`` if it is not known or no longer there."""
    try:
        folder = Path(_path(key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return folder if folder.is_dir() else None


def _path(key: str) -> Path:
    return cache_folder("notes") / hashlib.sha256(key.encode()).hexdigest()
