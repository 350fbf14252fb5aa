"""``polyloom probe`` on tiny runs: what it prints, keeps and draws."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from polyloom.cli.probe import app
from polyloom.conditions import Condition
from polyloom.config import load_recipe, parse_recipe
from polyloom.data.catalog import resolve
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.errors import ConditionError, ConfigError, PolyloomError
from polyloom.io.sealed import read_sealed
from polyloom.model import Model
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.tiny_run import tiny_recipe

FAMILIES = "code\tfamily_name\naa\tOne\nbb\tTwo\ncc\tOne\n"
PLACES = {
    "languages": {"languages", "families", "projection", "map", "neighbours", "linkage", "agreement"},
    "swap": {"task", "metric", "languages", "own", "donors", "scores"},
    "weights": {"conditions", "similarity", "sites"},
    "capacity": {"languages", "conditions", "embeddings", "read", "layers"},
}
OPTIONS = {"swap": ("--task", "pos", "--max-sentences", 30)}


def probe(*arguments: object) -> tuple[str, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def kept(run: Path, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_sealed(run / "probes" / f"{kind}.json"))
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    (folder / "families.tsv").write_text(FAMILIES)
    return folder


def train(world: Path, method: str, steps: int) -> Path:
    recipe = load_recipe(tiny_recipe(world, method, tasks=("mlm", "pos"), train={"steps": steps}))
    train_recipe(recipe, world / method)
    return world / method


@pytest.fixture(scope="module")
def hyperx(world):
    return train(world, "hyperx", 120)


@pytest.mark.parametrize("kind", PLACES)
def test_every_probe_prints_keeps_and_draws(kind, hyperx, world, tmp_path):
    given = OPTIONS.get(kind, ()) if kind != "languages" else ("--typology", world / "families.tsv")
    out, err = probe(kind, hyperx, *given, "--figure", tmp_path / "figure.png")
    found = kept(hyperx, kind)
    assert found.pop("kind") == kind
    assert found.pop("checkpoint") == Run.load(hyperx).checkpoint.name
    assert found.keys() == PLACES[kind]
    printed, _ = probe(kind, hyperx, *given, "--json")
    assert json.loads(printed) == kept(hyperx, kind)
    assert (tmp_path / "figure.png").stat().st_size > 5000
    assert "Stored in" in err
    assert "─" in out


def test_contradicting_languages_need_their_own_weights(hyperx):
    out, err = probe("swap", hyperx, "--task", "pos")
    found = kept(hyperx, "swap")
    assert (found["languages"], found["donors"], found["metric"]) == (
        ["aa", "bb", "cc"],
        ["aa", "bb", "cc"],
        "accuracy",
    )
    run = Run.load(hyperx)
    evaluated = run.evaluate(run.recipe.data.test)
    for row, language in enumerate(found["languages"]):
        own = evaluated.results[Condition("pos", language)].scores[0].value
        assert found["scores"][row][row] == pytest.approx(own, abs=1e-5), "its own weights score what evaluate says"
    assert found["scores"][0][0] > found["scores"][0][1] + 40
    assert "Language does not matter" not in out
    assert "aa with weights of bb" in err


def test_languages_and_donors_can_be_chosen(hyperx):
    probe("swap", hyperx, "--task", "pos", "--languages", "aa", "--donors", "cc", "--max-sentences", 5)
    found = kept(hyperx, "swap")
    assert (found["languages"], found["donors"]) == (["aa"], ["aa", "cc"])


def test_a_model_that_ignores_languages_is_found_out(world):
    run = train(world, "multilingual", 3)
    out, _ = probe("swap", run, "--task", "pos", "--max-sentences", 10)
    assert "Language does not matter: all scores are the same" in out
    assert all(len(set(row)) == 1 for row in kept(run, "swap")["scores"])
    out, _ = probe("weights", run)
    assert "All languages have the same weights." in out
    with pytest.raises(PolyloomError, match="method multilingual: has no parameters per language"):
        probe("languages", run)
    with pytest.raises(PolyloomError, match="method multilingual: has no hypernetwork"):
        probe("capacity", run)


def test_families_are_shown_and_what_is_not_known_is_said(hyperx, world, tmp_path, monkeypatch):
    (tmp_path / "families.tsv").write_text("code\tfamily_name\naa\tOne\nbb\tTwo\n")
    out, _ = probe("languages", hyperx, "--typology", tmp_path)
    assert "No family is known of: cc." in out
    assert "too few are known" in out
    monkeypatch.setenv("POLYLOOM_DATA", str(tmp_path / "nowhere"))
    out, err = probe("languages", hyperx)
    assert "No families: the data root has no folder meta." in err
    assert set(kept(hyperx, "languages")["families"].values()) == {None}
    (tmp_path / "data" / "meta").mkdir(parents=True)
    (tmp_path / "data" / "meta" / "families.tsv").write_text(FAMILIES)
    monkeypatch.setenv("POLYLOOM_DATA", str(tmp_path / "data"))
    probe("languages", hyperx)
    assert kept(hyperx, "languages")["families"] == {"aa": "One", "bb": "Two", "cc": "One"}


def test_mistakes_are_told_before_anything_is_scored(hyperx, tmp_path):
    for arguments, error, message in (
        (["swap", hyperx], ConfigError, "has mlm, pos. Name one"),
        (["swap", hyperx, "--task", "pso"], ConfigError, "Did you mean 'pos'"),
        (["swap", hyperx, "--task", "pos", "--languages", "xx"], ConfigError, "'xx' is not scored on data.test"),
        (["swap", hyperx, "--task", "pos", "--donors", "xx"], ConditionError, "unknown language 'xx'"),
        (["weights", hyperx, "--tasks", "ner"], ConditionError, "unknown task 'ner'"),
        (["weights", hyperx, "--figure", tmp_path / "figure.gif"], PolyloomError, "unknown format"),
        (["languages", hyperx, "--typology", tmp_path / "nowhere"], PolyloomError, "cannot be read"),
    ):
        with pytest.raises(error, match=message):
            probe(*arguments)


def test_translations_keep_their_tokens(tmp_path, monkeypatch):
    pairs = {"boza-kepa": ("boza", "kepa"), "boza-nina": ("boza", "nina")}
    texts: dict[str, list[str]] = {name: [] for pair in pairs.values() for name in pair}
    for corpus, (source, target) in pairs.items():
        for record in resolve(f"synthetic:{corpus}/train[:100]").records("bitext"):
            texts[source].append(record.source)  # type: ignore[attr-defined]
            texts[target].append(record.target)  # type: ignore[attr-defined]
    train_vocabulary(texts, tmp_path / "vocabulary", config=VocabularyConfig(size=200), languages=list(texts))
    directions = {f"mt/{s}/{t}": f"synthetic:{corpus}/SPLIT[:8]" for corpus, (s, t) in pairs.items()}
    recipe = {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(tmp_path / "vocabulary")},
        "method": {"name": "lang-adapters", "adapter_size": 4},
        "languages": list(texts),
        "tasks": {"mt": {}},
        "directions": ["boza/*"],
        "data": {
            part: {c: corpus.replace("SPLIT", split) for c, corpus in directions.items()}
            for part, split in (("train", "train"), ("validation", "dev"), ("test", "test"))
        },
        "train": {"steps": 2, "rows_per_batch": 4, "max_length": 64},  # no sentence is translated in parts
    }
    train_recipe(parse_recipe(recipe, source="test"), tmp_path / "run")
    written, write = [], Model.generate_ids

    def listen(model, batch, *, weights, **options):
        written.append((batch.conditions, batch.inputs, weights))
        return write(model, batch, weights=weights, **options)

    monkeypatch.setattr(Model, "generate_ids", listen)
    probe("swap", tmp_path / "run", "--max-sentences", 2)
    found = kept(tmp_path / "run", "swap")
    assert (found["languages"], found["donors"]) == (["boza/kepa", "boza/nina"], ["kepa", "nina"])
    assert found["own"] == ["kepa", "nina"]
    assert len(written) == 4
    model = Run.load(tmp_path / "run").model
    (own, one, by_right), (same, other, donated) = written[:2]
    assert own == same == [Condition("mt", "boza", "kepa")] * 2
    assert all(torch.equal(one[name], other[name]) for name in one), "text and language tokens are its own"
    for weights, name in ((by_right, "kepa"), (donated, "nina")):
        meant = model.weights([Condition("mt", "boza", name)]).blocks[0].tensors
        assert all(torch.allclose(t, meant[key]) for key, t in weights.blocks[0].tensors.items())
