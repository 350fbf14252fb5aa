"""Notes about this machine, by a hash of a content: where folders are, and what was made or checked here.

Exported adapters name a local backbone by its last name alone, so that they carry no paths of the machine. The cache
notes where it is, for the machine that exported them.
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


def remember(content: str, folder: str) -> None:
    """Note where a folder is. Other names are ignored, as is a cache that cannot be written."""
    if Path(folder).is_dir():
        note(content, str(Path(folder).resolve()))


def recall(content: str) -> Path | None:
    """Return where a folder is, or ``None`` if it is not known or no longer there."""
    try:
        folder = Path(_file(content).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return folder if folder.is_dir() else None


def note(content: str, text: str = "") -> None:
    """Note something about a content; a cache that cannot be written is ignored."""
    file = _file(content)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(file, text)


def is_noted(content: str) -> bool:
    """Return whether something was noted about a content."""
    return _file(content).is_file()


def _file(content: str) -> Path:
    return cache_folder("places") / hashlib.sha256(content.encode()).hexdigest()
