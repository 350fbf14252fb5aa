"""A run of two steps: enough to export it."""

from pathlib import Path

import pytest

from polyloom.config import load_recipe
from polyloom.workflows.train import train_recipe
from tests.tiny_run import tiny_recipe


@pytest.fixture(scope="package")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose adapters change nothing in the backbone; its folder's name is in no export."""
    world = tmp_path_factory.mktemp("alice-private")
    recipe = tiny_recipe(world, "madx", tasks=("mlm", "pos", "ner"), train={"steps": 2})
    train_recipe(load_recipe(recipe), world / "run")
    return world / "run"
