"""A language added to a trained run: it gains, it begins as a relative, and nothing else changes by a bit."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from polyloom.cli import app
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.synthetic import Family
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.data.typology import Typology
from polyloom.errors import PolyloomError
from polyloom.loading import load_run_dir
from polyloom.workflows.add_language import (
    AddLanguageConfig,
    NewLanguageData,
    add_language,
    add_task,
    languages_to_start_from,
    part,
)
from polyloom.workflows.export import export_run
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.shared import lines_of

KNOWN = ("boza", "bame", "kepa", "kumi", "neno", "nina")
NEW = "baru"  # of boza's and bame's branch
METHODS = {
    "hyperx": {"name": "hyperx", "adapter_size": 16, "projection_size": 16, "hidden_size": 32, "embedding_size": 8},
    "madx": {"name": "madx", "adapter_size": 16, "task_adapter_size": 8},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("grow")
    texts = {}
    for language in (*KNOWN, NEW):
        texts[language] = lines_of(f"synthetic:{language}/train[:500]")
    train_vocabulary(texts, place / "vocabulary", config=VocabularyConfig(size=600, mask=True))
    (place / "new.txt").write_text("\n".join(texts[NEW]) + "\n")
    return place


def train(folder: Path, name: str, *, backbone: Mapping[str, Any], method: Mapping[str, Any], **more: Any) -> Path:
    corpora = {f"{task}/{x}": f"synthetic:{x}/train[:500]" for task in more["tasks"] for x in KNOWN}
    recipe = {
        "backbone": backbone, "method": method, "languages": list(KNOWN), "tasks": {task: {} for task in more["tasks"]},
        "data": {"train": corpora}, "mixture": {"datasets_per_batch": 6}, "optim": {"lr": 3e-3, "warmup_steps": 20},
        "train": {"steps": more["steps"], "rows_per_batch": 48, "max_length": 48, "dropout": False},
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(recipe))
    train_recipe(load_recipe(path), folder / name)
    return folder / name


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> Path:
    """A backbone that has read the known languages."""
    config = {
        "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 620,
        "intermediate_size": 128, "max_position_embeddings": 64, "pad_token_id": 1, "initializer_range": 0.05,
    }  # fmt: skip
    backbone = {"config": config, "tokenizer": str(folder / "vocabulary")}
    run = train(folder, "full", backbone=backbone, method={"name": "full"}, tasks=["mlm"], steps=400)
    export_run(load_run_dir(run), [Condition("mlm", "boza")], folder / "out", backbone=True)
    return folder / "out" / "backbone"


@pytest.fixture(scope="module", params=["hyperx", pytest.param("madx", marks=pytest.mark.nightly)])
def trained(request: pytest.FixtureRequest, folder: Path, pretrained: Path) -> Path:
    backbone = {"name": str(pretrained)}
    return train(
        folder, request.param, backbone=backbone, method=METHODS[request.param], tasks=["mlm", "pos"], steps=150
    )


def weights(run: Run) -> dict[str, torch.Tensor]:
    made = run.model.method.weights([Condition(task, x) for task in ("mlm", "pos") for x in KNOWN])
    return {f"{i}.{name}": t for i, block in enumerate(made.blocks) for name, t in block.tensors.items()}


def test_a_new_language_gains_and_no_other_changes(trained, folder, tmp_path):
    before, run = Run.load(trained), Run.load(trained)
    data = NewLanguageData(
        text=str(folder / "new.txt"), test={"mlm": f"synthetic:{NEW}/test", "pos": f"synthetic:{NEW}/test"}
    )
    growth = add_language(run.loaded, NEW, tmp_path / "grown", data=data, settings=AddLanguageConfig(steps=60))
    branches = Family().groups()
    kin = [value for donor, value in growth.donors if branches[donor] == branches[NEW]]
    strangers = [value for donor, value in growth.donors if branches[donor] != branches[NEW]]
    assert sum(kin) / len(kin) > sum(strangers) / len(strangers), growth.donors
    assert growth.after[f"mlm/{NEW}"] < growth.before[f"mlm/{NEW}"], "perplexity"
    assert growth.held_out[1] > growth.held_out[0] == growth.donors[0][1]
    grown = Run.load(tmp_path / "grown")
    old, new = dict(before.model.named_parameters()), dict(grown.model.named_parameters())
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        rows = len(tensor) if tensor.dim() else 1
        assert torch.equal(tensor, new[name][:rows] if tensor.dim() else new[name]), name
    assert all(torch.equal(t, weights(grown)[name]) for name, t in weights(before).items())
    assert NEW in grown.recipe.languages
    assert f"mlm/{NEW}" in grown.trained_on


def test_what_cannot_be_added_is_refused(trained, folder, tmp_path):
    run = Run.load(trained)
    with pytest.raises(PolyloomError, match="no data to train on"):
        add_language(run.loaded, NEW, tmp_path / "a", data=NewLanguageData())
    with pytest.raises(PolyloomError, match="is there already"):
        add_language(run.loaded, "boza", tmp_path / "a", data=NewLanguageData(text=str(folder / "new.txt")))
    with pytest.raises(PolyloomError, match="the run has none"):
        add_language(run.loaded, NEW, tmp_path / "a", data=NewLanguageData(examples={"ner": "x"}))


@pytest.mark.parametrize("like", ["", "boza,bame"])
def test_the_command_says_what_came_of_it(trained, folder, tmp_path, monkeypatch, like):
    monkeypatch.setattr("polyloom.cli.render.train.INTERVAL", -1)  # every donor and every step
    arguments = ["add", "language", trained, NEW, "--text", folder / "new.txt", "--steps", 20, "-o", tmp_path / "grown"]
    arguments += ["--copy-languages", like, "--test", f"pos=synthetic:{NEW}/test[:50]"]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    said = dict(line.split("\t", 1) for line in result.stdout.splitlines())
    assert {"held out", f"pos/{NEW}", "seconds"} <= said.keys()
    if like:
        assert said["initialised from"] == like
        assert "donor" not in result.output, "the languages are chosen: none is scored"
    else:
        assert said["donors"].startswith(f"{said['initialised from']} -")
        assert re.search(rf"donor {len(KNOWN)} of {len(KNOWN)}: [a-z]+, selection score -\d", result.stderr)
    assert re.search(r"step 3 of 20: loss \d+\.\d+ nats", result.stderr)
    assert re.search(r"step 20 of 20: held-out selection score -\d", result.stderr)


def test_a_new_task_is_learnt_and_no_other_changes(trained, tmp_path):
    before = Run.load(trained)
    examples = {x: f"synthetic:{x}/train[:300]" for x in ("boza", "kepa")}
    test = {x: f"synthetic:{x}/test[:60]" for x in ("boza", "bame")}
    growth = add_task(
        load_run_dir(trained),
        "dep",
        tmp_path / "grown",
        examples=examples,
        test=test,
        settings=AddLanguageConfig(steps=150),
    )
    assert growth.after["dep/boza"] > growth.before["dep/boza"] + 5, growth
    grown = Run.load(tmp_path / "grown")
    assert all(torch.equal(t, weights(grown)[name]) for name, t in weights(before).items())
    old, new = (run.model.get_parameter("heads.pos.classifier.weight") for run in (before, grown))
    assert torch.equal(old, new)


def test_a_language_can_begin_as_its_nearest_by_typology(tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    codes = {"boza": "aaa", "bame": "aab", "kepa": "aac"}
    assert languages_to_start_from("baru", list(codes), "mean", None) == tuple(codes)
    (tables / "features.tsv").write_text("iso\tf1\tf2\naaa\t1\t1\naab\t1\t0\naac\t0\t0\nzzz\t1\t1\n")
    (tables / "families.tsv").write_text("iso\tfamily\naaa\tA\naab\tA\naac\tB\nzzz\tA\n")
    typology = Typology.read(tables)
    donors = list(codes.values())
    assert languages_to_start_from("zzz", donors, "typology", typology) == ("aaa", "aab", "aac")
    assert languages_to_start_from("zzz", donors, "family", typology) == ("aaa", "aab")
    assert languages_to_start_from("zzz", donors, "fresh", None) == ()
    with pytest.raises(PolyloomError, match="--typology"):
        languages_to_start_from("zzz", donors, "family", None)


def test_a_language_is_known_by_its_typology_too(folder, pretrained, tmp_path, monkeypatch):
    """Its features are its own whatever it begins as, stay as they are while it learns, and make a difference."""
    tables = tmp_path / "meta"
    tables.mkdir()
    rows = [[name, *("1" if (i >> bit) & 1 else "0" for bit in range(3))] for i, name in enumerate((*KNOWN, NEW))]
    (tables / "features.tsv").write_text("\n".join("\t".join(row) for row in [["iso", "f1", "f2", "f3"], *rows]) + "\n")
    monkeypatch.setenv("POLYLOOM_DATA", str(tmp_path))
    trained = train(
        folder, "typed", backbone={"name": str(pretrained)}, method=METHODS["hyperx"] | {"typology": True},
        tasks=["mlm"], steps=10,
    )  # fmt: skip
    vectors = Typology.read(tables).vectors((*KNOWN, NEW), 8)
    table = Run.load(trained).model.get_parameter("method.features.weight")
    assert torch.equal(table, torch.tensor([vectors[x] for x in KNOWN])), "given, not learnt"
    text = NewLanguageData(text=str(folder / "new.txt"))
    add_language(load_run_dir(trained), NEW, tmp_path / "grown", data=text, settings=AddLanguageConfig(steps=4))
    grown = Run.load(tmp_path / "grown")
    table = grown.model.get_parameter("method.features.weight")
    assert torch.equal(table, torch.tensor([vectors[x] for x in (*KNOWN, NEW)])), "not those of what it began as"
    made = grown.model.method.weights([Condition("mlm", NEW)]).blocks[0].tensors["down"]
    with torch.no_grad():
        table[-1] = 0.0
    assert not torch.equal(made, grown.model.method.weights([Condition("mlm", NEW)]).blocks[0].tensors["down"])
    (tables / "features.tsv").write_text("iso\tf1\nzzz\t1\n")
    with pytest.raises(PolyloomError, match="no features of boza"):
        train(folder, "untyped", backbone={"name": str(pretrained)}, method=METHODS["hyperx"] | {"typology": True},
              tasks=["mlm"], steps=1)  # fmt: skip


@pytest.mark.parametrize("given", ["", "[<=5]", "[1:5]"])
def test_a_part_of_a_corpus_has_a_name_that_can_be_read_again(tmp_path, given):
    (tmp_path / "text.txt").write_text("a\nb\nc\nd\ne\n")
    made = part(resolve(f"{tmp_path}/text.txt{given}"), 1, 3)
    first = 2 if given == "[1:5]" else 1
    assert list(made.records("text")) == list(resolve(made.name).records("text"))
    assert made.name.endswith(f"text.txt[{first}:{first + 2}]")
