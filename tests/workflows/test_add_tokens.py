"""Pieces for a script that a tokenizer does not know: the new ones learn, and what was known is as it was."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.tokenization.new_tokens import new_tokens
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.errors import PolyloomError
from polyloom.loading import load_run_dir
from polyloom.training.events import Event, RowStep
from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.shared import lines_of

KNOWN, NEW = ("boza", "neno"), "kepa"  # the new one is written in Cyrillic


def lines(language: str, split: str = "train[:300]") -> list[str]:
    return lines_of(f"synthetic:{language}/{split}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extend")
    texts = {language: lines(language) for language in KNOWN}
    train_vocabulary(texts, folder / "backbone", config=VocabularyConfig(size=300, mask=True))
    size = load_tokenizer(folder / "backbone").vocab_size
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=size,
        max_position_embeddings=64, pad_token_id=1, initializer_range=0.1,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(folder / "backbone")
    recipe = {
        "backbone": {"name": str(folder / "backbone")}, "languages": list(KNOWN), "tasks": {"mlm": {}, "pos": {}},
        "method": {"name": "hyperx", "adapter_size": 8, "projection_size": 8, "hidden_size": 8, "embedding_size": 8},
        "data": {"train": {f"{task}/{x}": f"synthetic:{x}/train[:300]" for task in ("mlm", "pos") for x in KNOWN}},
        "mixture": {"datasets_per_batch": 4}, "optim": {"lr": 3e-3},
        "train": {"steps": 30, "rows_per_batch": 32, "max_length": 48, "dropout": False},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    train_recipe(load_recipe(folder / "recipe.yaml"), folder / "run")
    return folder / "run"


def test_new_pieces_are_of_unknown_letters_alone(trained):
    tokenizer = Run.load(trained).predictor.tokenizer
    found = new_tokens(tokenizer, [f"{a} {b}" for a, b in zip(lines("boza"), lines(NEW), strict=True)], 60)
    assert len(found) == len(set(found)) == 60
    assert all("Ѐ" <= letter <= "ӿ" for piece in found for letter in piece)
    assert max(map(len, found)) > 1
    assert new_tokens(tokenizer, lines("boza"), 60) == []


def test_letters_that_were_unknown_are_learnt_and_known_text_is_answered_as_before(trained, tmp_path):
    (tmp_path / "new.txt").write_text("\n".join(lines(NEW)) + "\n")
    steps: list[Event] = []
    growth = add_language(
        load_run_dir(trained), NEW, tmp_path / "grown", data=NewLanguageData(text=str(tmp_path / "new.txt")),
        on_event=steps.append,
        settings=AddLanguageConfig(steps=80, add_tokens=60, lr=3e-2),
    )  # fmt: skip
    assert growth.unknown > 0.3
    assert growth.added_tokens == 60
    scores = [step.score for step in steps if isinstance(step, RowStep) and step.score is not None]
    assert scores[-1] > scores[0], "held-out text is predicted better"
    before, grown = Run.load(trained), Run.load(tmp_path / "grown")
    cut = grown.predictor.tokenizer.text(lines(NEW, "test"))
    assert grown.predictor.tokenizer.unknown_rate([piece for ids in cut for piece in ids]) < 0.01
    old, new = (run.model.group("backbone.tokens")[0] for run in (before, grown))
    assert torch.equal(new[: len(old)], old), "only new rows learn"
    assert len({tuple(row) for row in new[len(old) :].tolist()}) == 60
    records = list(resolve("synthetic:boza/test[:40]").records("tags"))
    said = [list(run.predictor.predict(records, Condition("pos", "boza"))) for run in (before, grown)]
    assert said[0] == said[1]
    made = [run.model.method.weights([Condition("pos", "boza")]).blocks[0].tensors["down"] for run in (before, grown)]
    assert torch.equal(*made)


def test_what_cannot_have_new_pieces_is_refused(trained, tmp_path):
    (tmp_path / "known.txt").write_text("\n".join(lines("boza")) + "\n")
    with pytest.raises(PolyloomError, match="knows all characters"):
        add_language(
            load_run_dir(trained), NEW, tmp_path / "grown", data=NewLanguageData(text=str(tmp_path / "known.txt")),
            settings=AddLanguageConfig(add_tokens=9),
        )  # fmt: skip
    with pytest.raises(PolyloomError, match="Give --text"):
        add_language(
            load_run_dir(trained), NEW, tmp_path / "grown",
            data=NewLanguageData(examples={"pos": f"synthetic:{NEW}/train[:20]"}),
            settings=AddLanguageConfig(add_tokens=9),
        )  # fmt: skip


def test_a_run_with_added_tokens_can_be_moved(trained, tmp_path):
    (tmp_path / "new.txt").write_text("\n".join(lines(NEW)[:40]) + "\n")
    add_language(
        load_run_dir(trained), NEW, tmp_path / "grown", data=NewLanguageData(text=str(tmp_path / "new.txt")),
        settings=AddLanguageConfig(steps=1, add_tokens=9),
    )  # fmt: skip
    records = list(resolve(f"synthetic:{NEW}/test[:5]").records("tags"))
    before = list(Run.load(tmp_path / "grown").predictor.predict(records, Condition("pos", NEW)))
    moved = (tmp_path / "grown").rename(tmp_path / "elsewhere")
    assert list(Run.load(moved).predictor.predict(records, Condition("pos", NEW))) == before
    shutil.rmtree(moved / "backbone")
    with pytest.raises(PolyloomError, match="grown/backbone"):
        Run.load(moved)
