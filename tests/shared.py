"""What tests share: real corpora and a real pretrained backbone (which a clone does not have; CI does, and must not
skip), and what a command that was run has to say."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

SHARED = Path(os.environ.get("POLYLOOM_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
UNPACK = SHARED / "backbones" / "unpack.py"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the corpora at {SHARED} (POLYLOOM_SHARED)")


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]
