"""Exported adapters as their users meet them: written, moved, answering without the run, coming back from elsewhere."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from polyloom.config import load_recipe
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.workflows.train import train_recipe
from tests.shared import lines_of, polyloom
from tests.tiny_run import sentences, tiny_recipe

TASKS = ("mlm", "pos", "ner", "dep", "nli", "copa", "qa")
TEXT = "\n".join(" ".join(words) for words in sentences("test")) + "\n"
PAIRS = "\n".join(f"{' '.join(words[:2])}\t{' '.join(words[2:])}" for words in sentences("test")) + "\n"


INPUTS = {"nli": PAIRS, "qa": PAIRS, "copa": PAIRS.replace("\t", "\tcause\tba do\t")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = tmp_path_factory.mktemp("world")
    recipe = tiny_recipe(world, tasks=TASKS, mixture={"datasets_per_batch": 8})
    train_recipe(load_recipe(recipe), world / "run")
    return world / "run"


@pytest.fixture(scope="module")
def bank(trained: Path) -> Path:
    polyloom("export", trained, "--all", "-o", trained.parent / "bank")
    return trained.parent / "bank"


@pytest.mark.parametrize("condition", ["pos/aa", "ner/bb", "dep/cc", "nli/bb", "copa/bb", "qa/aa"])
def test_an_adapter_answers_as_the_run_it_is_from(trained, tmp_path, condition):
    polyloom("export", trained, condition, "-o", tmp_path / "adapter")
    shutil.move(tmp_path / "adapter", tmp_path / "moved")
    asked = INPUTS.get(condition.partition("/")[0], TEXT)
    said = polyloom("predict", trained, condition, stdin=asked)
    assert said.count("\n") >= 40
    assert polyloom("predict", tmp_path / "moved", condition, stdin=asked) == said
    assert "unknown" in polyloom("predict", tmp_path / "moved", condition[:-2] + "zz", stdin=asked, fails=True)


def test_all_adapters_make_a_bank(trained, bank):
    folders = sorted(str(path.parent.relative_to(bank)) for path in bank.glob("*/*/polyloom.json"))
    assert folders == sorted(f"{task}/{language}" for task in TASKS for language in ("aa", "bb", "cc"))
    for condition in ("pos/bb", "ner/aa"):
        said = polyloom("predict", trained, condition, stdin=TEXT)
        assert polyloom("predict", bank, condition, stdin=TEXT) == said


def test_the_card_says_what_it_is(trained, bank):
    card = (bank / "ner" / "bb" / "README.md").read_text()
    for said in ("# ner/bb", "hyperx", "polyloom predict", "`B-LOC`", "aa-train.tsv"):
        assert said in card


def test_what_a_format_cannot_hold_is_refused_with_a_remedy(trained, tmp_path):
    said = polyloom("export", trained, "ner/bb", "--format", "adapterhub", "-o", tmp_path / "a", fails=True)
    assert "LayerNorm" in said
    assert "--backbone" in said
    assert "Train with `block: lora`" in polyloom(
        "export", trained, "ner/bb", "--format", "peft", "--backbone", "-o", tmp_path / "b", fails=True
    )
    assert "no head there computes what Polyloom's head for dep does" in polyloom(
        "export", trained, "dep/bb", "--format", "adapterhub", "--backbone", "-o", tmp_path / "c", fails=True
    )
    for task in ("copa", "qa"):
        said = polyloom("export", trained, f"{task}/bb", "--format", "onnx", "-o", tmp_path / "d", fails=True)
        assert f"onnx: what {task} predicts is not a function of one graph" in said
    assert not any((tmp_path / name).joinpath("adapter_config.json").exists() for name in "abc")


def test_there_and_back_again_through_adapterhub(trained, tmp_path):
    out = tmp_path / "out"
    polyloom("export", trained, "ner/bb", "--format", "adapterhub", "--backbone", "-o", out)
    there = out / "ner" / "bb"
    assert json.loads((there / "head_config.json").read_text())["config"]["head_type"] == "tagging"
    back = tmp_path / "back" / "ner" / "bb"
    polyloom("import", there, "--as", "ner/bb", "--backbone", out / "backbone", "-o", back)
    said = polyloom("predict", trained, "ner/bb", stdin=TEXT)
    assert polyloom("predict", tmp_path / "back", "ner/bb", stdin=TEXT) == said
    assert "is for a backbone with hidden_size 32" in polyloom(
        "import", there, "--as", "ner/bb", "--backbone", _other_backbone(tmp_path), "-o", tmp_path / "x", fails=True
    )


def _other_backbone(folder: Path) -> Path:
    import transformers

    other = folder / "other"
    tokenizer = folder / "out" / "backbone"
    shutil.copytree(tokenizer, other)
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=70
    )
    transformers.BertForMaskedLM(config).save_pretrained(other)
    return other


def test_a_translation_is_exported_with_the_network_that_it_was_trained_with(tmp_path):
    languages = ["boza", "bame", "kepa"]
    texts = {language: _lines(language) for language in languages}
    train_vocabulary(texts, tmp_path / "vocabulary", config=VocabularyConfig(size=300), languages=languages)
    directions = {f"mt/boza/{x}": f"synthetic:boza-{x}/train[:300]" for x in languages[1:]}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps(
            {
                "backbone": {"preset": "transformer-mini", "tokenizer": str(tmp_path / "vocabulary")},
                "method": {"name": "hyper-adapters", "hidden_size": 16, "adapter_size": 8},
                "languages": languages,
                "tasks": {"mt": {}},
                "directions": ["boza/*"],
                "data": {"train": directions},
                "optim": {"lr": 3e-3},
                "train": {"steps": 30, "tokens_per_batch": 256, "max_length": 40},
            }
        )
    )
    polyloom("train", recipe, "-o", tmp_path / "run")
    refused = polyloom("export", tmp_path / "run", "mt/boza/kepa", "-o", tmp_path / "out", fails=True)
    assert "trained the whole backbone" in refused
    polyloom("export", tmp_path / "run", "--all", "--backbone", "-o", tmp_path / "out")
    asked = "\n".join(_lines("boza")[:8]) + "\n"
    for condition in ("mt/boza/kepa", "mt/boza/bame"):
        said = polyloom("predict", tmp_path / "run", condition, "--beams", 1, stdin=asked)
        assert polyloom("predict", tmp_path / "out", condition, "--beams", 1, stdin=asked) == said
    tensors = load_file(tmp_path / "out" / "mt" / "boza" / "kepa" / "weights.safetensors")
    assert all(name.startswith("block.") for name in tensors), "the network is written once"


def _lines(language: str) -> list[str]:
    return lines_of(f"synthetic:{language}/train[:300]")
