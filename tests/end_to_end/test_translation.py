"""From two text files per pair to a translation at the prompt: every command, for every method, on real sentences."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from polyloom.checkpoint import read_tensors
from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.records import Bitext
from polyloom.rundir import RunDir
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.shared import DATA, needs_data, polyloom

RECIPE = Path(__file__).parents[2] / "src/polyloom/recipes" / "mini" / "translation.yaml"
METHODS = [
    pytest.param("{name: dense}", marks=pytest.mark.nightly),
    pytest.param("{name: lang-adapters, adapter_size: 16}", marks=pytest.mark.nightly),
    pytest.param("{name: pair-adapters, adapter_size: 16}", marks=pytest.mark.nightly),
    "{name: hyper-adapters, hidden_size: 32, adapter_size: 16}",
]
PAIRS = ["deu", "spa"]
pytestmark = needs_data


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two aligned files for each pair, as a new user has them."""
    folder = tmp_path_factory.mktemp("corpus")
    for language in PAIRS:
        every = resolve(f"tatoeba-mt:eng-{language}/train[:2000]", root=DATA).records("bitext")
        records = [record for record in every if isinstance(record, Bitext)]
        (folder / f"{language}.eng.txt").write_text("".join(f"{r.source}\n" for r in records))
        (folder / f"{language}.{language}.txt").write_text("".join(f"{r.target}\n" for r in records))
    return folder


@pytest.fixture(scope="module")
def recipe_file(corpus):
    directions = {f"mt/eng/{x}": f"{corpus}/{x}.{{eng,{x}}}.txt" for x in PAIRS}
    directions |= {f"mt/{x}/eng": f"{corpus}/{x}.{{eng,{x}}}.txt" for x in PAIRS}
    settings = {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(corpus / "vocabulary")},
        "method": {"name": "hyper-adapters", "hidden_size": 32, "adapter_size": 16},
        "languages": ["eng", *PAIRS],
        "tasks": {"mt": {}},
        "directions": ["eng/*", "*/eng"],
        "data": {
            "train": directions,
            "validation": {"mt/eng/deu": "tatoeba-mt:eng-deu/dev[:40]"},
            "test": {
                "mt/eng/deu": "tatoeba-mt:eng-deu/test[:10]",
                "mt/spa/eng": "tatoeba-mt:eng-spa/test[:10]",
            },
            "root": str(DATA),
        },
        "mixture": {"temperature": 5.0, "datasets_per_batch": 2},
        "optim": {"lr": 3e-3, "schedule": "inverse-sqrt", "warmup_steps": 10},
        "train": {"steps": 40, "tokens_per_batch": 512, "max_length": 40, "label_smoothing": 0.1}
        | {"save_every": 10, "keep_last": 3},
    }
    path = corpus / "recipe.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def vocabulary(corpus, recipe_file):
    polyloom("data", "vocab", recipe_file, "-o", corpus / "vocabulary", "--size", "500")
    return corpus / "vocabulary"


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_to_translate(method, recipe_file, vocabulary, tmp_path):
    recipe = load_recipe(recipe_file, [f"method={method}"])
    train_recipe(recipe, tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    (validation,) = (event for event in events if event["event"] == "validation")
    assert validation["scores"]["mt/eng/deu"] < 500, "a perplexity below that of a guess"
    matrix = Run.load(tmp_path / "run").evaluate(recipe.data.test)
    for dataset in matrix.results.values():
        assert [score.metric.name for score in dataset.scores] == ["bleu", "chrf"]
        assert "tok:13a" in dataset.scores[0].signature


@pytest.mark.nightly
def test_a_run_is_resumed_in_mid_corpus_bit_for_bit(recipe_file, vocabulary, tmp_path):
    recipe = load_recipe(recipe_file, ["train.steps=8", "train.save_every=4"])
    train_recipe(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    folder = RunDir(tmp_path / "half")
    shutil.rmtree(folder.checkpoint(8))
    train_recipe(recipe, tmp_path / "half")
    one, other = (read_tensors(RunDir(tmp_path / name).checkpoint(8)) for name in ("whole", "half"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_from_files_to_a_translation_at_the_prompt(recipe_file, vocabulary, tmp_path):
    runs = tmp_path / "run"
    polyloom("train", recipe_file, "-o", runs)
    to_german = partial(polyloom, "predict", runs, "mt/eng/deu", "--beams", "2")
    first, second, third = to_german(stdin="Good morning.\n\nHow are you? I am fine.\n").splitlines()
    assert first and third and not second  # noqa: PT018
    by_sentence = to_german("--sentences", stdin="How are you? I am fine.\n")
    assert by_sentence.split() == to_german(stdin="How are you?\nI am fine.\n").split()
    as_json = polyloom(
        "predict", runs, "mt/deu/spa", "--pivot", "eng", "--input", "jsonl", stdin='{"id": 7, "text": "Guten Tag."}\n'
    )
    assert json.loads(as_json).keys() == {"id", "text", "translation"}
    assert "bleu" in polyloom("evaluate", runs, "--beams", "1", "--format", "markdown")
    polyloom("average", runs, "-o", tmp_path / "mean", "--last", "3")
    folder = RunDir(runs)
    parts = [read_tensors(folder.checkpoint(step)) for step in folder.steps()[-3:]]
    mean = Run.load(tmp_path / "mean").model.state_dict()
    for name in parts[0]:
        expected = sum(part[name].double() for part in parts) / 3
        torch.testing.assert_close(
            mean[name.replace("backbone.", "backbone.model.")].double(), expected, rtol=1e-6, atol=1e-6
        )
    assert "train.keep_last=9" in polyloom("average", runs, "-o", tmp_path / "more", "--last", "9", fails=True)
