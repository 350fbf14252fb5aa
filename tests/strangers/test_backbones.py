"""Backbones and tokenizers that are not what they seem: refused with a reason, quickly, and no code is run."""

import json
import os
import pickle

import pytest

from polyloom.backbones import load_backbone
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import PolyloomError
from tests.export.test_hostile import Bomb
from tests.tiny_run import write_backbone


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POLYLOOM_BOMB", str(tmp_path))
    (tmp_path / "backbone").mkdir()
    write_backbone(tmp_path / "backbone")
    return tmp_path / "backbone"


def put(file, **values):
    def change(folder):
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | values))

    return change


def text(file, content):
    return lambda folder: (folder / file).write_text(content)


def instead(file, make):
    """Put something else in the place of a file."""

    def change(folder):
        (folder / file).rename(folder.parent / "moved")
        make(folder / file, folder.parent / "moved")

    return change


def tokenizer(**parts):
    return put("tokenizer.json", **parts)


def pickles(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))


SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+b|(a|a)*c"}, "behavior": "Isolated", "invert": False}
GROWS = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40}
CASES = {
    "pickled weights alone": pickles,
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "a configuration that is a list": text("config.json", "[]"),
    "a deep configuration": text("config.json", "[" * 100_000),
    "a large configuration": text("config.json", json.dumps({"x": "y" * (2 << 20)})),
    "numbers that are not": text("config.json", '{"model_type": "bert", "hidden_size": NaN}'),
    "a million layers": put("config.json", num_hidden_layers=1_000_000),
    "more layers than the file": put("config.json", num_hidden_layers=499),
    "wide layers": put("config.json", hidden_size=1 << 20),
    "a wide vocabulary": put("config.json", vocab_size=9_999_999),
    "more words than numbers": put("config.json", vocab_size=10**30),
    "many labels": put("config.json", num_labels=10**9),
    "no heads": put("config.json", num_attention_heads=0),
    "negative sizes": put("config.json", intermediate_size=-5),
    "a size that is a text": put("config.json", hidden_size="32"),
    "an unknown activation": put("config.json", hidden_act="exec"),
    "another family": put("config.json", model_type="gpt2"),
    "no family": put("config.json", model_type=["bert"]),
    "code": put("config.json", auto_map={"AutoConfig": "evil.Config"}, model_type="evil"),
    "the name of another model": text("adapter_config.json", '{"base_model_name_or_path": "evil/model"}'),
    "weights that are a pipe": instead("model.safetensors", lambda path, _: os.mkfifo(path)),
    "a configuration that is a pipe": instead("config.json", lambda path, _: os.mkfifo(path)),
    "weights that are a device": instead("model.safetensors", lambda path, _: path.symlink_to("/dev/zero")),
    "weights elsewhere": instead("model.safetensors", lambda path, moved: path.symlink_to(moved)),
    "weights that are a folder": instead("model.safetensors", lambda path, _: path.mkdir()),
    "weights that are text": text("model.safetensors", "hello"),
    "a tokenizer that is a pipe": instead("tokenizer.json", lambda path, _: os.mkfifo(path)),
    "a tokenizer elsewhere": instead("tokenizer.json", lambda path, moved: path.symlink_to(moved)),
    "a deep tokenizer": text("tokenizer.json", "[" * 100_000),
    "no tokenizer": text("tokenizer.json", "{}"),
    "a tokenizer without a model": tokenizer(model=None),
    "a slow tokenizer": tokenizer(pre_tokenizer=SLOW),
    "a tokenizer that doubles": tokenizer(normalizer=GROWS),
    "special tokens of another kind": put("tokenizer_config.json", pad_token=3),
    "no padding token": put("tokenizer_config.json", pad_token=None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_a_reason(folder, tmp_path, name):
    CASES[name](folder)
    with pytest.raises(PolyloomError, match=r"^backbone\.|tokenizer|backbone") as refused:
        load_tokenizer(folder), load_backbone(folder)
    assert len(str(refused.value)) < 2000
    assert not (tmp_path / "exploded").exists()


def test_no_code_of_a_folder_is_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'exploded')!r})\nT = C = M = None\n")
    put("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]}, tokenizer_class="T")(folder)
    put("config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForMaskedLM": "evil.M"})(folder)
    assert load_tokenizer(folder).vocab_size
    assert load_backbone(folder).shape.width == 32
    assert not (tmp_path / "exploded").exists()


def test_what_was_not_touched_is_read(folder):
    assert load_tokenizer(folder).vocab_size
    assert load_backbone(folder).shape.width == 32


def test_a_snapshot_of_the_hub_consists_of_links(folder, tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in folder.iterdir():
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert load_tokenizer(snapshot).vocab_size
    assert load_backbone(snapshot).shape.width == 32


def test_a_tokenizer_is_tried_once(folder, monkeypatch):
    from polyloom.data.tokenization import trial

    tried: list[object] = []
    monkeypatch.setattr(trial, "_try", tried.append)
    load_tokenizer(folder)
    load_tokenizer(folder)
    assert tried == [folder / "tokenizer.json"]
