"""One torch thread: on few cores that is several times faster, and results do not depend on the machine."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# MKL keeps buffers by the number of a thread. A forked process inherits that table, and a thread with such a number
# may look for its buffer for ever. Commands and servers of tests are forks (`in_child`); those of users never are.
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

import pytest
import torch

from polyloom import registry
from polyloom.backbones import FAMILIES
from polyloom.data.kinds import RECORDS
from polyloom.data.readers.formats import READERS
from polyloom.io import access
from polyloom.methods import METHODS
from polyloom.metrics import METRICS
from polyloom.nn.blocks import BLOCKS
from polyloom.registry import load_code
from polyloom.tasks import TASKS
from tests.own import OWN
from tests.shared import EXAMPLES, SHARED, UNPACK

torch.set_num_threads(1)
REGISTRIES: tuple[registry.Registry[Any], ...] = (METHODS, TASKS, BLOCKS, FAMILIES, READERS, METRICS, RECORDS)
STATE = pytest.StashKey[dict[str, object]]()
VARIABLES = os.environ.keys() - {"PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="session", autouse=True)
def _cells_of_this_session(tmp_path_factory, request):
    """No dataset that another process encoded is used, and nothing is left in anybody's home."""
    os.environ["POLYLOOM_CACHE"] = str(tmp_path_factory.mktemp("datasets"))
    request.session.stash[STATE] = shared_state()


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
    if OWN:  # tests of what is registered; those without parameters are of what the package brings
        mine = [
            item
            for item in items
            if hasattr(item, "callspec")
            and not item.callspec.id.startswith("NOTSET")  # no case of it is registered
            and item.path.name != "test_registered.py"  # which starts this very command for each example
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in mine])
        items[:] = mine
    if config.getoption("shard"):
        number, count = map(int, config.getoption("shard").split("/"))
        assert 1 <= number <= count
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % count != number - 1])
        items[:] = items[number - 1 :: count]


def pytest_configure(config):
    if config.getoption("code"):
        before = [set(table) for table in REGISTRIES]
        for file in config.getoption("code"):
            load_code(file)
        for table, names in zip(REGISTRIES, before, strict=True):  # the same name may be in another table
            OWN.update(set(table) - names)
        if not OWN:
            raise pytest.UsageError("--code: the files register nothing")


def pytest_collection_finish():
    """Collect garbage of the tests alone, which is quick: libraries have more than a million objects that stay."""
    gc.collect()
    gc.freeze()


def shared_state() -> dict[str, object]:
    """What all tests of a process share, and which a test could leave changed."""
    ours = {name for name in os.environ if name.startswith("POLYLOOM_")}  # libraries add others when they are imported
    return {
        "environment": {name: os.environ.get(name) for name in sorted(VARIABLES | ours)},
        "working directory": Path.cwd(),
        "registered": [*(list(table._items) for table in REGISTRIES), list(registry._files)],
        "allowed paths": list(access._allowed),
        "torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
    }


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """No file of tests leaves something behind: which file comes next in a process is chance."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()  # else datasets stay open, hundreds of files of them
        before, after = item.session.stash[STATE], shared_state()
        item.session.stash[STATE] = after
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        assert not changed, f"{item.path} leaves changed: {changed}"


@pytest.fixture
def own_registries(monkeypatch):
    """What a test registers is gone after it."""
    for table in REGISTRIES:
        monkeypatch.setattr(table, "_items", dict(table._items))
    monkeypatch.setattr(registry, "_files", list(registry._files))


@pytest.fixture
def load_example(own_registries):
    """Load an example as --code does."""

    def load(name):
        load_code(EXAMPLES / f"{name}.py")
        return sys.modules[f"polyloom_code_{name}"]

    return load
