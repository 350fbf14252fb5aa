"""ONNX graphs answer in ONNX Runtime as the model does: one for all languages, or one with the adapter inside."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file

from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.onnx import Graph, write_onnx
from polyloom.model import Model
from tests.contracts.tiny import LANGUAGES, has_two_stacks, tiny_backbone, tiny_config, tiny_inputs

LABELS = ("ADJ", "NOUN", "VERB")


def made(family: str, method: str = "hyperx", **settings: object) -> Model:
    tasks = {"mt": None} if has_two_stacks(family) else {"pos": LABELS, "dep": ("root", "dep")}
    model = Model(tiny_backbone(family), tiny_config(method, **settings), languages=LANGUAGES, tasks=tasks)
    torch.manual_seed(5)
    for parameter in (*model.method.parameters(), *model.heads.parameters()):
        parameter.data.normal_(std=0.3)
    return model.eval()


def ask(folder, family, adapter=None):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    inputs = {name: tensor.numpy() for name, tensor in tiny_inputs(family).items()}
    (logits,) = session.run(None, inputs | (adapter or {}))
    return logits


def right(model, condition, family):
    """What we say; what stands at padding means nothing."""
    inputs = tiny_inputs(family)
    with torch.no_grad():
        logits = Graph(model, condition, model.method.weights([condition]))(inputs).numpy()
    mask = np.ones(logits.shape[:2]) if has_two_stacks(family) else inputs["attention_mask"].numpy()
    return logits, mask[..., None]


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("xlm-roberta", "hyperx"),
        pytest.param("bert", "madx", marks=pytest.mark.nightly),
        pytest.param("m2m_100", "hyper-adapters", marks=pytest.mark.nightly),
        pytest.param("llama", "hyperx", marks=pytest.mark.nightly),
    ],
)
def test_one_graph_serves_every_language(family, method, tmp_path):
    model = made(family, method)
    pair = has_two_stacks(family)
    conditions = [Condition("mt", "en", x) if pair else Condition("pos", x) for x in ("tr", "sw", "yo")]
    folder = write_onnx(model, conditions, tmp_path / "graph", baked=False)
    said = []
    for condition in conditions:
        adapter = load_file(folder / f"{str(condition).replace('/', '-')}.safetensors")
        logits, mask = right(model, condition, family)
        said.append(logits)
        assert np.abs((ask(folder, family, adapter) - logits) * mask).max() < 1e-5
    assert np.abs(said[0] - said[1]).max() > 1e-2, "languages differ"
    about = json.loads((folder / "model.json").read_text())
    assert about["conditions"] == list(map(str, conditions))
    assert about["labels"] == ([] if pair else list(LABELS))


def test_an_adapter_can_be_inside(tmp_path):
    model, condition = made("bert", block="lora"), Condition("pos", "tr")
    folder = write_onnx(model, [condition], tmp_path / "graph", baked=True)
    logits, mask = right(model, condition, "bert")
    assert np.abs((ask(folder, "bert") - logits) * mask).max() < 1e-5
    assert not list(folder.glob("*.safetensors"))


def test_what_is_no_graph_is_refused(tmp_path):
    model = made("bert")
    with pytest.raises(ExportError, match="not a function of one graph"):
        write_onnx(model, [Condition("dep", "tr")], tmp_path / "graph", baked=True)
    with pytest.raises(ExportError, match="of one task"):
        write_onnx(model, [Condition("dep", "tr"), Condition("pos", "tr")], tmp_path / "graph", baked=False)
