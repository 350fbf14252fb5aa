"""Checkpoints are whole or absent, hold what was trained, and fit only the backbone they were trained on."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from polyloom.checkpoint import MANIFEST, TENSORS, load_checkpoint, read_manifest, read_tensors, save_checkpoint
from polyloom.errors import CheckpointError, DamagedError
from polyloom.io.hashes import sha256_of
from polyloom.io.sealed import read_sealed, seal
from polyloom.model import Model
from tests.contracts.tiny import ROWS, logits, tiny_backbone, tiny_config, tiny_inputs, tiny_model


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(tiny_model("hyperx", "bert", backbone=tiny_backbone("bert")), tmp_path / "saved")


def change_manifest(saved, **changes):
    """Change a manifest and seal it again, as someone could who writes checkpoints himself."""
    manifest = json.loads(read_sealed(saved / MANIFEST)) | changes
    (saved / MANIFEST).write_text(seal(json.dumps(manifest)))


def flip(file, position):
    """Flip a bit of a file, and return what was there."""
    before = file.read_bytes()
    after = bytearray(before)
    after[position] ^= 1 << (position % 8)
    file.write_bytes(after)
    return before


def test_only_what_is_trained_is_stored(saved):
    names = set(load_file(saved / TENSORS))
    assert {name.split(".")[0] for name in names} == {"method", "backbone"}
    assert all("LayerNorm" in name or "cls." in name for name in names if name.startswith("backbone."))
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

    monkeypatch.setattr("polyloom.tensor_files.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tiny_model("hyperx", "bert"), tmp_path / "saved")
    assert not list(tmp_path.iterdir())


def test_damage_is_noticed(saved):
    content = bytearray((saved / TENSORS).read_bytes())
    content[-1] ^= 1
    (saved / TENSORS).write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its manifest"):
        load_checkpoint(saved, tiny_backbone("bert"))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_flipped_bit_anywhere_in_a_manifest_is_an_error_that_names_the_file(saved, every):
    file = saved / MANIFEST
    for position in range(0, len(file.read_bytes()), every):
        before = flip(file, position)
        with pytest.raises(DamagedError, match=f"^{file}: "):
            read_manifest(saved)
        file.write_bytes(before)
    assert read_manifest(saved)["format"] == 1


def test_a_flipped_bit_in_the_weights_is_an_error_that_names_the_file(saved):
    file, draw = saved / TENSORS, random.Random(0)
    size = len(file.read_bytes())
    for position in (*range(64), *(draw.randrange(size) for _ in range(64))):
        before = flip(file, position)
        with pytest.raises(DamagedError, match=f"^{file}: "):
            read_tensors(saved)
        file.write_bytes(before)
    assert read_tensors(saved)


@pytest.mark.parametrize("key", ["languages", "labels"])
def test_reversed_languages_or_labels_are_refused(tmp_path, key):
    model = Model(tiny_backbone("bert"), tiny_config("hyperx"), languages=["en", "tr"], tasks={"pos": ["A", "B"]})
    saved = save_checkpoint(model, tmp_path / "saved")
    text = (saved / MANIFEST).read_text()
    names = {"languages": ('"en",\n    "tr"', '"tr",\n    "en"'), "labels": ('"A",\n      "B"', '"B",\n      "A"')}
    assert names[key][0] in text
    (saved / MANIFEST).write_text(text.replace(*names[key]))
    with pytest.raises(DamagedError, match=f"^{saved / MANIFEST}: damaged"):
        load_checkpoint(saved, tiny_backbone("bert"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensor: tensor.fill_(torch.nan), "has values that are NaN or infinite"),
        (lambda tensor: tensor.view(-1)[-1:].fill_(-torch.inf), "has values that are NaN or infinite"),
        (lambda tensor: tensor.to(torch.int8), "is of type torch.int8"),
    ],
    ids=["nan", "infinite", "int8"],
)
def test_weights_that_are_no_numbers_are_refused_by_their_name(saved, change, words):
    tensors = load_file(saved / TENSORS)
    name = max(tensors)
    changed = change(tensors[name])
    save_file(tensors | ({name: changed} if changed.shape == tensors[name].shape else {}), saved / TENSORS)
    change_manifest(saved, tensors_sha256=sha256_of(saved / TENSORS))
    with pytest.raises(CheckpointError, match=f"^{saved / TENSORS}: {name} {words}"):
        load_checkpoint(saved, tiny_backbone("bert"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"format": 99, "polyloom": "9.1"},
            r"of format 99, written by Polyloom 9\.1\. This version reads format 1\. Update Polyloom",
        ),
        ({"format": "x"}, "names no format"),
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
    for text in (content, seal(content)):
        (saved / MANIFEST).write_text(text)
        with pytest.raises(CheckpointError):
            load_checkpoint(saved, tiny_backbone("bert"))


def test_a_manifest_without_a_seal_is_refused(saved):
    (saved / MANIFEST).write_text(read_sealed(saved / MANIFEST))
    with pytest.raises(DamagedError, match=f"^{saved / MANIFEST}: damaged: its first line has no SHA-256"):
        load_checkpoint(saved, tiny_backbone("bert"))


def test_a_missing_directory_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path / "nothing", tiny_backbone("bert"))


def test_rows_survive(saved):
    loaded = load_checkpoint(saved, tiny_backbone("bert"))
    assert [str(row) for row in loaded.method.languages] == ["en", "tr", "sw", "yo", "no", "quy"]
    assert loaded.method.encode(ROWS).rows_B.tolist() == [0, 1, 2, 3, 4, 5, 0]
