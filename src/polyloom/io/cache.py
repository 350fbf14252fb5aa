"""The folder for what can be computed again, and for notes about this machine."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return a folder of the cache: in ``POLYLOOM_CACHE``, else in ``~/.cache/polyloom``."""
    return Path(os.environ.get("POLYLOOM_CACHE") or Path.home() / ".cache" / "polyloom") / name
