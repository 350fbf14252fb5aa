"""A language added to a run that translates: it begins with a relative's token and weights; nothing else changes."""

import json
from pathlib import Path

import pytest
import torch

from polyloom.config import load_recipe
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.errors import PolyloomError
from polyloom.loading import load_run_dir
from polyloom.tasks.translation import TranslationConfig
from polyloom.training.events import Event, RowStep
from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.shared import lines_of, nightly, polyloom

KNOWN, NEW = ("boza", "bame", "kepa"), "baru"
METHODS = {
    "hyper-adapters": {"name": "hyper-adapters", "hidden_size": 16, "adapter_size": 8},
    "lang-adapters": {"name": "lang-adapters", "adapter_size": 8},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("grow-mt")
    texts = {language: lines_of(f"synthetic:{language}/train[:300]") for language in KNOWN}
    tokens = (*KNOWN, NEW)  # that there is one for the new language helps nobody: it was never trained
    train_vocabulary(texts, place / "vocabulary", config=VocabularyConfig(size=300), languages=tokens)
    return place


def train(folder: Path, method: str) -> Path:
    corpora = {f"mt/{way}": f"synthetic:boza-{x}/train[:300]" for x in KNOWN[1:] for way in (f"boza/{x}", f"{x}/boza")}
    recipe = {
        "backbone": {
            "preset": "transformer-mini", "tokenizer": str(folder / "vocabulary"),
            "config": {"encoder_layers": 1, "decoder_layers": 1},
        },
        "method": METHODS.get(method, {"name": method}), "languages": list(KNOWN), "tasks": {"mt": {}},
        "directions": ["boza/*", "*/boza"], "data": {"train": corpora}, "optim": {"lr": 3e-3},
        "train": {"steps": 40, "tokens_per_batch": 512, "max_length": 40, "dropout": False},
    }  # fmt: skip
    (folder / f"{method}.yaml").write_text(json.dumps(recipe))
    train_recipe(load_recipe(folder / f"{method}.yaml"), folder / method)
    return folder / method


@pytest.mark.parametrize("method", [next(iter(METHODS)), *nightly(*list(METHODS)[1:])])
def test_a_new_language_is_translated_and_no_other_direction_changes(method, folder, tmp_path):
    trained = train(folder, method)
    steps: list[Event] = []
    pairs = NewLanguageData(examples={"mt/boza": f"synthetic:boza-{NEW}/train[:300]"})
    growth = add_language(
        load_run_dir(trained),
        NEW,
        tmp_path / "grown",
        data=pairs,
        settings=AddLanguageConfig(steps=40),
        on_event=steps.append,
    )
    scores = [step.score for step in steps if isinstance(step, RowStep) and step.score is not None]
    assert max(scores) > growth.donors[0][1], "better than the best donor's weights"
    assert {donor for donor, _ in growth.donors} == {"bame", "kepa"}, "boza is on the other side"
    before, grown = Run.load(trained), Run.load(tmp_path / "grown")
    old, new = dict(before.model.named_parameters()), dict(grown.model.named_parameters())
    for name, tensor in old.items():
        assert torch.equal(tensor, new[name][: len(tensor)]), name
    task = grown.recipe.tasks["mt"]
    assert isinstance(task, TranslationConfig)
    assert task.language_token_aliases == {NEW: growth.copied[0]}
    asked = ["boza", *KNOWN[1:]]
    for run in (before, grown):
        assert said(tmp_path, run.path, f"mt/boza/{asked[1]}") == said(tmp_path, trained, f"mt/boza/{asked[1]}")
    assert said(tmp_path, tmp_path / "grown", f"mt/boza/{NEW}")
    polyloom("export", tmp_path / "grown", f"mt/boza/{NEW}", "--backbone", "-o", tmp_path / "out")
    assert said(tmp_path, tmp_path / "out", f"mt/boza/{NEW}") == said(tmp_path, tmp_path / "grown", f"mt/boza/{NEW}")


def said(folder: Path, run: Path, condition: str) -> str:
    lines = lines_of("synthetic:boza/test[:6]")
    return polyloom("predict", run, condition, "--beams", 1, stdin="\n".join(lines) + "\n")


def test_what_cannot_be_added_is_refused(folder, tmp_path):
    run = Run.load(train(folder, "pair-adapters"))
    dense = Run.load(train(folder, "dense"))
    corpus = f"synthetic:boza-{NEW}/train[:20]"
    with pytest.raises(PolyloomError, match="mt/eng=FILE, with the other language"):
        add_language(run.loaded, NEW, tmp_path / "a", data=NewLanguageData(examples={"mt": corpus}))
    for one in (run, dense):
        with pytest.raises(PolyloomError, match="no parameters per language"):
            add_language(one.loaded, NEW, tmp_path / "a", data=NewLanguageData(examples={"mt/boza": corpus}))
