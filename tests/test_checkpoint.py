"""Checkpoints are whole or absent, hold what was trained, and fit only the backbone they were trained on."""

import json

import pytest
import torch
from safetensors.torch import load_file

from polyloom.checkpoint import MANIFEST, TENSORS, load_checkpoint, save_checkpoint
from polyloom.errors import CheckpointError
from polyloom.model import Model
from tests.contracts.tiny import ROWS, logits, tiny_backbone, tiny_config, tiny_inputs, tiny_model


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(tiny_model("hyperx", "bert", backbone=tiny_backbone("bert")), tmp_path / "saved")


def change_manifest(saved, **changes):
    manifest = json.loads((saved / MANIFEST).read_text()) | changes
    (saved / MANIFEST).write_text(json.dumps(manifest))


def test_only_what_is_trained_is_stored(saved):
    names = set(load_file(saved / TENSORS))
    assert {name.split(".")[0] for name in names} == {"method", "backbone"}
    assert all("LayerNorm" in name for name in names if name.startswith("backbone."))
    assert sorted(path.name for path in saved.iterdir()) == sorted([MANIFEST, TENSORS])


def test_a_grown_world_is_stored_as_it_is(tmp_path):
    model = tiny_model("badx", "bert", backbone=tiny_backbone("bert"))
    model.method.add_language("gn")
    model.method.add_direction("en", "gn")
    model.method.add_task("dep", labels=4)
    loaded = load_checkpoint(save_checkpoint(model, tmp_path / "grown"), tiny_backbone("bert")).eval()
    row = {name: tensor[:1] for name, tensor in tiny_inputs("bert").items()}
    with torch.no_grad():
        assert torch.equal(logits(model, row, ["dep/en/gn"]), logits(loaded, row, ["dep/en/gn"]))


def test_a_world_that_grew_from_one_language_gets_no_pairs_it_did_not_have(tmp_path):
    model = Model(tiny_backbone("bert"), tiny_config("badx"), languages=["en"], tasks=["pos"])
    model.method.add_language("gn")
    loaded = load_checkpoint(save_checkpoint(model, tmp_path / "grown"), tiny_backbone("bert"))
    assert (list(loaded.method.languages), list(loaded.method.directions)) == (["en", "gn"], [])


def test_another_backbone_is_refused(saved):
    other = tiny_backbone("bert")
    other.model.get_input_embeddings().weight.data[3, 3] += 1e-3
    with pytest.raises(CheckpointError, match="was trained on another backbone"):
        load_checkpoint(saved, other)
    with pytest.raises(CheckpointError, match="was trained on another backbone"):
        load_checkpoint(saved, tiny_backbone("roberta"))


def test_an_existing_directory_is_never_overwritten(saved):
    with pytest.raises(CheckpointError, match="exists already"):
        save_checkpoint(tiny_model("hyperx", "bert"), saved)


def test_a_failed_save_leaves_nothing_behind(tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr("polyloom.checkpoint.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tiny_model("hyperx", "bert"), tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_damage_is_noticed(saved):
    content = bytearray((saved / TENSORS).read_bytes())
    content[-1] ^= 1
    (saved / TENSORS).write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its manifest"):
        load_checkpoint(saved, tiny_backbone("bert"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 99}, "not of format 1"),
        ({"method": {"name": "hyprx"}}, "Did you mean 'hyperx'"),
        ({"method": {"name": "hyperx", "nonsense": 1}}, "not as this version writes it"),
        ({"method": "hyperx"}, "not as this version writes it"),
        ({"languages": None}, "not as this version writes it"),
        ({"languages": ["en", "en"]}, "not as this version writes it"),
        ({"backbone": {}}, "not as this version writes it"),
        ({"languages": ["en", "tr"]}, "of another shape"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(saved, changes, words):
    if "languages" in changes:
        changes |= {"directions": []}
    change_manifest(saved, **changes)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(saved, tiny_backbone("bert"))


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00", '"text"'])
def test_what_is_no_manifest_is_refused(saved, content):
    (saved / MANIFEST).write_text(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(saved, tiny_backbone("bert"))


def test_a_missing_directory_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path / "nothing", tiny_backbone("bert"))


def test_rows_survive(saved):
    loaded = load_checkpoint(saved, tiny_backbone("bert"))
    assert [str(row) for row in loaded.method.languages] == ["en", "tr", "sw", "yo", "no", "quy"]
    assert loaded.method.encode(ROWS).rows_B.tolist() == [0, 1, 2, 3, 4, 5, 0]
