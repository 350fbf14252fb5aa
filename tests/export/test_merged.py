"""A model with a merged LoRA computes, in Transformers alone, what the run computes for its condition."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
import transformers

from polyloom.backbones import FAMILIES, backbone_from_config
from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.adapter import generate_adapters
from polyloom.export.merged import write_merged
from polyloom.loading import load_run_dir
from polyloom.methods import METHODS
from polyloom.model import Model
from polyloom.workflows.export import export_run
from tests.contracts.tiny import config_of, tiny_backbone, tiny_config, tiny_inputs
from tests.metrics.peers import PYTHON, needs_peers
from tests.shared import polyloom
from tests.tiny_run import tiny_recipe

CASES = [
    ("lm/tr", "hyper-stack", "llama"), ("lm/tr", "madx", "qwen3"), ("mlm/tr", "hyperx", "bert"),
    ("mlm/tr", "multilingual", "modernbert"), ("mt/en/tr", "hyper-adapters", "m2m_100"), ("mt/en/tr", "madx", "mt5"),
]  # fmt: skip
CT2 = Path(__file__).parents[2] / "benchmarks" / "peer_ctranslate2.py"


@pytest.mark.parametrize(("condition", "method", "family"), CASES)
def test_a_merged_model_has_the_logits_of_the_run(condition, method, family, tmp_path):
    settings = {"invertible": False} if hasattr(METHODS[method].config_type, "invertible") else {}
    config = tiny_config(method, block="lora", targets="all-linear", **settings)
    task = condition.partition("/")[0]
    model = Model(tiny_backbone(family), config, languages=("en", "tr"), tasks=[task]).eval()
    torch.manual_seed(11)
    for parameter in model.method.parameters():
        parameter.data.normal_(std=0.3)
    inputs = {name: tensor[:1] for name, tensor in tiny_inputs(family).items()}
    (adapter,) = generate_adapters(model, [Condition.parse(condition)])
    with torch.no_grad():
        expected, bare = model(inputs, [condition]).logits, model.backbone(**inputs).logits
        write_merged(adapter, model.backbone, tmp_path / "merged")
        merged = getattr(transformers, FAMILIES[family].auto_class).from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(merged.eval()(**inputs).logits, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(model.backbone(**inputs).logits, bare), "the backbone itself stays as it was"
    assert (expected - bare).abs().max() > 0.01


def test_what_it_cannot_hold_is_refused(hasty, tmp_path):
    with pytest.raises(ExportError, match="merged: only LoRA is exported, and mlm/aa has bottleneck"):
        export_run(load_run_dir(hasty), [Condition("mlm", "aa")], tmp_path / "out", format="merged")


def test_the_command_writes_a_model_with_its_tokenizer(tmp_path):
    method = {"name": "hyperx", "block": "lora", "adapter_size": 4}
    recipe = tiny_recipe(tmp_path / "world", "hyperx", tasks=("mlm", "pos"), train={"steps": 2})
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"method": method}))
    polyloom("train", recipe, "-o", tmp_path / "run")
    polyloom("export", tmp_path / "run", "mlm/aa", "--format", "merged", "-o", tmp_path / "merged")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "merged")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert model(**tokenizer("a b", return_tensors="pt")).logits.isfinite().all()
    assert "AutoModelForMaskedLM.from_pretrained" in (tmp_path / "merged" / "README.md").read_text()
    error = polyloom("export", tmp_path / "run", "pos/aa", "--format", "merged", "-o", tmp_path / "out", fails=True)
    assert "merged: pos has a head of its own" in error


@pytest.mark.parity
@needs_peers
@pytest.mark.nightly
def test_ctranslate2_translates_with_a_merged_model_as_the_run_does(tmp_path):
    """Each direction becomes a model of CTranslate2, whose converter assumes the padding of M2M100 itself: piece 1."""
    special = {"pad_token_id": 1, "bos_token_id": 0, "tie_word_embeddings": False}
    backbone = backbone_from_config({"model_type": "m2m_100"} | config_of("m2m_100") | special)
    config = tiny_config("hyper-adapters", block="lora", targets="all-linear")
    model = Model(backbone, config, languages=("en", "tr", "sw"), tasks=["mt"]).eval()
    torch.manual_seed(11)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    sources, starts = torch.randint(5, 60, (4, 7)), torch.full((4, 1), 2)
    inputs = {"input_ids": sources, "attention_mask": torch.ones_like(sources), "decoder_input_ids": starts}
    question = {"kind": "float32", "beams": 1, "new": 12, "sources": sources.tolist(), "starts": [2] * 4}
    lines = "\n".join(map(json.dumps, ({"convert": True}, question)))
    written = []
    for adapter in generate_adapters(model, [Condition("mt", "en", "tr"), Condition("mt", "tr", "sw")]):
        merged = write_merged(adapter, model.backbone, tmp_path / adapter.condition.target)
        asked = subprocess.run([PYTHON, CT2, merged], input=lines, stdout=subprocess.PIPE, text=True, check=True)
        written.append(json.loads(asked.stdout.splitlines()[1])["ids"])
        expected = model.generate(inputs, [adapter.condition] * 4, max_new_tokens=12, num_beams=1, do_sample=False)
        assert written[-1] == expected[:, 1:].tolist()
    assert written[0] != written[1]
