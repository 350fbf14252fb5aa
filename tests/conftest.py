"""One torch thread: on few cores that is several times faster, and results do not depend on the machine."""

import os
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from polyloom import registry
from polyloom.backbones import FAMILIES
from polyloom.data.readers.formats import READERS
from polyloom.methods import METHODS
from polyloom.metrics import METRICS
from polyloom.nn.blocks import BLOCKS
from polyloom.registry import load_code
from polyloom.tasks import TASKS
from tests.shared import EXAMPLES, SHARED, UNPACK

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


def pytest_addoption(parser):
    parser.addoption("--code", action="append", default=[], metavar="FILE", help="File that registers more to test.")
    parser.addoption("--shard", metavar="K/N", help="Every N-th test, from the K-th on: shards together are all tests.")


def pytest_collection_modifyitems(config, items):
    if config.getoption("shard"):
        number, count = map(int, config.getoption("shard").split("/"))
        assert 1 <= number <= count
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % count != number - 1])
        items[:] = items[number - 1 :: count]


def pytest_configure(config):
    for file in config.getoption("code"):
        load_code(file)


@pytest.fixture
def load_example(monkeypatch):
    """Load an example as --code does; what it registers is gone after the test."""
    for table in (METHODS, TASKS, BLOCKS, FAMILIES, READERS, METRICS):
        monkeypatch.setattr(table, "_items", dict(table._items))
    monkeypatch.setattr(registry, "_loaded", set(registry._loaded))

    def load(name):
        load_code(EXAMPLES / f"{name}.py")
        return sys.modules[f"polyloom_code_{name}"]

    return load
