import pytest

from polyloom.workflows.train import train
from tests.tiny_run import tiny_recipe

TASKS = ("mlm", "pos", "ner", "dep", "nli", "qa")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the recipes, the backbone and the runs are."""
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="session")
def run(folder):
    """A run of five tasks that has learnt how two languages differ."""
    return train(tiny_recipe(folder, tasks=TASKS), folder / "hyper")
