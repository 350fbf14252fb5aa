"""A model with a merged LoRA computes, in Transformers alone, what the run computes for its condition."""

import json

import pytest
import torch
import transformers

from polyloom.backbones import FAMILIES
from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.adapter import generate_adapters
from polyloom.export.merged import write_merged
from polyloom.methods import METHODS
from polyloom.model import Model
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from tests.contracts.tiny import tiny_backbone, tiny_config, tiny_inputs
from tests.shared import polyloom
from tests.tiny_run import tiny_recipe

CASES = [
    ("lm/tr", "hyper-stack", "llama"), ("lm/tr", "madx", "qwen3"), ("mlm/tr", "hyperx", "bert"),
    ("mlm/tr", "multilingual", "modernbert"), ("mt/en/tr", "hyper-adapters", "m2m_100"), ("mt/en/tr", "madx", "mt5"),
]  # fmt: skip


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
        export_run(Run.load(hasty), [Condition("mlm", "aa")], tmp_path / "out", to="merged")


def test_the_command_writes_a_model_with_its_tokenizer(tmp_path):
    method = {"name": "hyperx", "block": "lora", "adapter_size": 4}
    recipe = tiny_recipe(tmp_path / "world", "hyperx", tasks=("mlm", "pos"), train={"steps": 2})
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"method": method}))
    polyloom("train", recipe, "-o", tmp_path / "run")
    polyloom("export", tmp_path / "run", "mlm/aa", "--to", "merged", "-o", tmp_path / "merged")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "merged")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert model(**tokenizer("a b", return_tensors="pt")).logits.isfinite().all()
    assert "AutoModelForMaskedLM.from_pretrained" in (tmp_path / "merged" / "README.md").read_text()
    error = polyloom("export", tmp_path / "run", "pos/aa", "--to", "merged", "-o", tmp_path / "out", fails=True)
    assert "merged: pos has a head of its own" in error
