"""Registries: packages and single files extend Polyloom without touching it."""

import subprocess
import sys
from pathlib import Path

import pytest

from polyloom.errors import PolyloomError
from polyloom.registry import Registry, load_code
from tests.shared import polyloom

EXAMPLES = Path(__file__).parents[1] / "examples"
RECIPE = """
backbone: {config: {model_type: bert, vocab_size: 100, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2}}
method: {name: task-adapters, adapter_size: 8}
languages: [en, tr]
tasks: {pos: {labels: 3}}
"""


def test_a_name_is_registered_once():
    registry: Registry[int] = Registry("number", {"one": 1}.items())
    registry.register("two", 2)
    assert dict(registry) == {"one": 1, "two": 2}
    with pytest.raises(PolyloomError, match="number 'one' is registered already"):
        registry.register("one", 3)
    with pytest.raises(PolyloomError, match=r"unknown number 'tow'\. Did you mean 'two'\?.*--code FILE"):
        registry.find("tow")


def test_a_file_that_is_not_there_or_fails_is_named(tmp_path):
    with pytest.raises(PolyloomError, match="no such file"):
        load_code(tmp_path / "absent.py")
    (tmp_path / "wrong.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(PolyloomError, match=r"wrong\.py: ModuleNotFoundError"):
        load_code(tmp_path / "wrong.py")


def test_code_brings_a_method_to_the_command_line(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert "unknown method 'task-adapters'" in polyloom("plan", tmp_path / "recipe.yaml", fails=True)
    script = (  # a process of its own: what is registered stays registered
        "import sys; from polyloom.cli import main; "
        f"sys.argv = ['polyloom', 'plan', {str(tmp_path / 'recipe.yaml')!r}, '--json', '--code', "
        f"{str(EXAMPLES / 'own_method.py')!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"chosen": "task-adapters"' in done.stdout


def test_an_installed_package_brings_a_method(tmp_path):
    (tmp_path / "their_package.py").write_text((EXAMPLES / "own_method.py").read_text())
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[polyloom]\nmethod = their_package\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import polyloom.methods as m; print(list(m.METHODS))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "task-adapters" in done.stdout
    (tmp_path / "their_package.py").write_text("raise RuntimeError('broken')\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "extension 'method' (their_package) cannot be imported: RuntimeError('broken')" in done.stderr
