"""What any version wrote, this one reads, and it means the same (R18)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from polyloom.backbones import Backbone, identity_of, load_backbone
from polyloom.checkpoint import load_checkpoint
from polyloom.export.adapter import Adapter, load_adapters_into, read_adapter
from polyloom.export.adapterhub import read_adapterhub
from polyloom.export.peft import read_peft
from tests.fixtures.write import CONDITION, HERE, LABELS, logits

VERSIONS = sorted(path for path in HERE.iterdir() if (path / "expected.safetensors").exists())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_there_are_fixtures():
    assert VERSIONS


def placed(adapter: Adapter, backbone: Backbone) -> Adapter:
    return replace(adapter, identity=identity_of(backbone))


@pytest.mark.parametrize("name", ["hyperx", "madx", "lora"])
def test_what_was_written_is_read_and_means_the_same(folder, name):
    expected = load_file(folder / "expected.safetensors")[name]

    def fresh() -> Backbone:
        return load_backbone(folder / "backbone")

    torch.testing.assert_close(logits(load_checkpoint(folder / f"checkpoint-{name}", fresh()).eval()), expected)
    torch.testing.assert_close(
        logits(load_adapters_into([read_adapter(folder / f"adapter-{name}")], fresh())), expected
    )
    backbone = fresh()
    if name == "lora":
        adapter = read_peft(folder / "peft", CONDITION, backbone, labels=LABELS)
    else:
        place = folder / f"adapterhub-{name}"
        folders = [place] if (place / "adapter_config.json").exists() else [place / "tr", place / "pos"]
        adapter = read_adapterhub(folders, CONDITION, backbone.shape)
    torch.testing.assert_close(logits(load_adapters_into([placed(adapter, backbone)], backbone)), expected)
