"""Real corpora and a real pretrained backbone, which a clone does not have; CI does, and must not skip."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("POLYLOOM_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
UNPACK = SHARED / "backbones" / "unpack.py"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the corpora at {SHARED} (POLYLOOM_SHARED)")
