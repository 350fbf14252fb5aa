"""One torch thread: on few cores that is several times faster, and results do not depend on the machine."""

import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from tests.shared import SHARED, UNPACK

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cells_of_this_session(tmp_path_factory):
    """Nothing that an earlier version encoded is found again, and nothing is left in anybody's home."""
    os.environ["POLYLOOM_CACHE"] = str(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A directory with a small pretrained multilingual model and its tokenizer."""
    if not UNPACK.exists():
        pytest.skip(f"needs the pretrained backbone at {SHARED} (POLYLOOM_SHARED)")
    target = tmp_path_factory.mktemp("backbones")
    subprocess.run([sys.executable, UNPACK, target], check=True, capture_output=True)
    return target / "me5-6l"
