"""A folder of adapters: every one is checked, and what is not an adapter of it is not served."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from polyloom.backbones import identity_of, load_backbone
from polyloom.errors import CheckpointError
from polyloom.export.adapter import Adapter, read_adapter, write_adapter
from polyloom.loading import load_predictor
from tests.shared import polyloom


@pytest.fixture(scope="module")
def exported(hasty: Path) -> Path:
    polyloom("export", hasty, "pos/aa", "pos/bb", "-o", hasty.parent / "exported")
    return hasty.parent / "exported"


@pytest.fixture
def bank(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "bank"))


def change(path: Path, made: Callable[[Adapter], Adapter]) -> None:
    adapter = made(read_adapter(path))
    shutil.rmtree(path)
    write_adapter(adapter, path)


def test_a_second_adapter_for_another_backbone_is_refused_by_name(hasty, bank):
    load_predictor(bank)
    other = load_backbone(hasty.parent / "backbone")
    other.model.get_input_embeddings().weight.data[3, 3] += 1e-3
    change(bank / "pos" / "bb", lambda adapter: replace(adapter, identity=identity_of(other)))
    with pytest.raises(CheckpointError, match=r"pos/bb: was trained on another backbone .* has other parameters"):
        load_predictor(bank)


def test_two_adapters_for_one_condition_are_refused_with_both_names(bank):
    shutil.copytree(bank / "pos" / "aa", bank / "pos" / "again")
    with pytest.raises(CheckpointError, match=r"pos/again: an adapter for pos/aa, as is .*/pos/aa\. Remove one"):
        load_predictor(bank)


def test_adapters_for_inputs_of_different_lengths_are_refused(bank):
    change(bank / "pos" / "bb", lambda adapter: replace(adapter, about={**adapter.about, "max_length": 7}))
    with pytest.raises(CheckpointError, match="different `max_length`"):
        load_predictor(bank)


@pytest.mark.parametrize("name", [".bb.partial-0123456789abcdef", ".hidden"])
def test_leftovers_are_not_served(bank, name):
    (bank / "pos" / "bb").rename(bank / "pos" / name)
    (bank / ".all.partial-77").mkdir()
    shutil.copytree(bank / "pos" / name, bank / ".all.partial-77" / "bb")
    conditions = load_predictor(bank).model.method.inventory().languages
    assert list(conditions) == ["aa"]
    shutil.rmtree(bank / "pos" / "aa")
    with pytest.raises(CheckpointError, match="nor an exported adapter"):
        load_predictor(bank)


def test_a_backbone_that_is_not_on_this_machine_is_asked_for_and_found_beside_the_adapter(
    hasty, bank, tmp_path, monkeypatch
):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "elsewhere"))
    shutil.rmtree(bank / "pos" / "bb")
    with pytest.raises(
        CheckpointError, match=r"pos/aa: .* './backbone', which is not known .* Copy it to .*aa/backbone"
    ):
        load_predictor(bank)
    shutil.copytree(hasty.parent / "backbone", bank / "pos" / "aa" / "backbone")
    load_predictor(bank)
