"""Exports are made to be given away: no file of them has a path of the machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyloom
from polyloom.config import load_recipe
from polyloom.workflows.train import train_recipe
from tests.shared import nightly
from tests.shared import polyloom as command
from tests.tiny_run import tiny_recipe


@pytest.fixture(scope="module")
def lora(hasty: Path) -> Path:
    recipe = tiny_recipe(hasty.parent, {"name": "hyperx", "block": "lora"}, tasks=("pos",), train={"steps": 2})
    train_recipe(load_recipe(recipe), hasty.parent / "lora")
    return hasty.parent / "lora"


def paths_in(folder: Path, run: Path) -> Iterator[str]:
    """The files that name a folder of this machine."""
    source = Path(polyloom.__file__).parents[1]
    names = {run.parent.name, folder.parent.name, "pytest-of-", str(Path.home()), str(source), "site-packages"}
    for file in (file for file in folder.rglob("*") if file.is_file()):
        content = file.read_bytes()
        yield from (f"{file.relative_to(folder)}: {name}" for name in names if name.encode() in content)


@pytest.mark.parametrize(
    "options",
    [
        ["--all"],
        ["pos/aa"],
        ["pos/aa", "--format", "adapterhub"],
        ["pos/aa", "--format", "adapterhub", "--backbone"],
        ["pos/aa", "--format", "onnx"],
        *nightly(["pos/aa", "--format", "onnx-baked"]),
    ],
    ids=" ".join,
)
def test_an_export_has_no_path_of_the_machine(hasty, tmp_path, options):
    command("export", hasty, *options, "-o", tmp_path / "out")
    assert any((tmp_path / "out").rglob("*"))
    assert not list(paths_in(tmp_path / "out", hasty))


@pytest.mark.parametrize("to", ["peft", "polyloom"])
def test_an_export_with_its_backbone_has_no_path_of_the_machine(lora, tmp_path, to):
    command("export", lora, "pos/aa", "--format", to, "--backbone", "-o", tmp_path / "out")
    assert (tmp_path / "out" / "backbone" / "tokenizer.json").exists()
    assert not list(paths_in(tmp_path / "out", lora))


def test_an_imported_adapter_has_no_path_of_the_machine_and_finds_its_backbone(hasty, tmp_path):
    command("export", hasty, "pos/aa", "--format", "adapterhub", "-o", tmp_path / "out")
    folders = [tmp_path / "out" / name for name in ("aa", "pos")]
    backbone = hasty.parent / "backbone"
    command("import", *folders, "--as", "pos/aa", "--backbone", backbone, "-o", tmp_path / "in")
    assert not list(paths_in(tmp_path / "in", hasty))
    about = json.loads((tmp_path / "in" / "polyloom.json").read_text())["about"]
    assert (about["settings"]["name"], about["imported"]) == ("./backbone", ["aa", "pos"])
    said = command("predict", hasty, "pos/aa", stdin="ba do fi\n")
    assert command("predict", tmp_path / "in", "pos/aa", stdin="ba do fi\n") == said
