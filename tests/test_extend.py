"""The door for others: one module that has all that extensions need, and nothing else of the package."""

import ast
from pathlib import Path

import pytest

from polyloom import extend
from tests.shared import EXAMPLES

IMPORTABLE = {"polyloom", "polyloom.extend"}


def test_extend_lists_what_it_has_and_nothing_private():
    assert isinstance(extend.VERSION, int)
    assert len(set(extend.__all__)) == len(extend.__all__)
    assert not [name for name in extend.__all__ if name.startswith("_") or not hasattr(extend, name)]
    # Every import is for others: what the module itself needs is nothing.
    public = {name for name in vars(extend) if not name.startswith("_")}
    assert public == set(extend.__all__)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_import_nothing_else_of_the_package(example: Path):
    imported = set()
    for node in ast.walk(ast.parse(example.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
            imported |= {f"polyloom.{alias.name}" for alias in node.names if node.module == "polyloom"}
    assert {name for name in imported if name.partition(".")[0] == "polyloom"} <= IMPORTABLE
