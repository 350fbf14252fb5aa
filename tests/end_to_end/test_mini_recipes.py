"""Every encoder method, trained for a minute or less on real corpora and a real pretrained backbone.

The recipes are those of ``recipes/mini``, with the backbone at hand and fewer steps. What is shown is that they learn,
and that what was learnt from English (or some languages) holds in others; how well they do is measured elsewhere. MAD-X
and Hyper-X with one task are in ``test_first_hour.py``. In CI the methods learn from made-up corpora
(``tests/strangers``, ``tests/workflows``).
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.evaluate.scoring import score_corpora
from polyloom.inference.predictor import Predictor
from polyloom.model import Model
from polyloom.tasks import TASKS
from polyloom.workflows.run import Run
from polyloom.workflows.train import prepare_training, train_recipe
from tests.shared import DATA, needs_data

RECIPES = Path(__file__).parents[2] / "src/polyloom/recipes" / "mini"
pytestmark = [needs_data, pytest.mark.nightly]
# Name of the recipe, changes, zero-shot cells that must beat the majority.
STAGES = ["stages.languages.train.steps=30", "stages.tasks.train.steps=50"]
CASES = {
    "full": (["train.steps=40"], ["pos/de", "pos/tr", "pos/mt"]),
    "badx": (STAGES, ["pos/mt"]),
    "badx-1-5": ([*STAGES, "stages.languages.mixture.ratio=[1, 5]"], ["pos/mt"]),
    "multilingual": (STAGES, ["pos/de", "pos/tr", "pos/mt"]),
    "hyperx": (["train.steps=80"], ["pos/de", "pos/tr", "pos/mt"]),
    "hyperx-mixed-language": (["train.steps=60"], ["pos/de", "pos/tr"]),
    "psf": (["train.steps=60"], ["pos/tr"]),
}
# Five steps of English to one of Maltese: in so few steps it is English that gets better, Maltese does not yet.
RAW = {"badx": ("mlm/en/mt", "ud:en_ewt/dev[:60]")}


def load(name: str, pretrained: Path, changes: list[str]):
    settings = [f"backbone.name={pretrained}", f"data.root={DATA}", *changes]
    if name not in ("full", "psf") and torch.cpu.get_capabilities().get("amx_bf16"):  # which a frozen backbone may use
        settings += ["backbone.dtype=bf16", "backbone.attention=eager"]
    return load_recipe(RECIPES / f"{name}.yaml", settings)


def losses(folder: Path) -> dict[str, list[float]]:
    """Losses of every task, in order."""
    found: dict[str, list[float]] = {}
    for line in (folder / "log.jsonl").read_text().splitlines():
        for task, loss in json.loads(line).get("losses", {}).items():
            found.setdefault(task, []).append(loss)
    return found


def perplexity(model: Model, pretrained: Path, condition: str, corpus: str) -> float:
    """Of raw text that nobody learns from."""
    predictor = Predictor(model, tokenizer=load_tokenizer(pretrained), max_length=128)
    return score_corpora(predictor, Condition.parse(condition), [resolve(corpus, root=DATA)])[0].value


@pytest.mark.parametrize("case", CASES)
def test_it_learns_and_transfers(case, pretrained, tmp_path):
    changes, zero_shot = CASES[case]
    recipe = load("badx" if case == "badx-1-5" else case, pretrained, changes)
    raw = RAW.get(case, ("mlm/mt", "ud:mt_mudt/dev[:60]")) if "mlm/mt" in recipe.data.train else None
    before = perplexity(prepare_training(recipe).model, pretrained, *raw) if raw else 0.0
    train_recipe(recipe, tmp_path / "run")
    for task, values in losses(tmp_path / "run").items():
        fifth = max(len(values) // 5, 1)
        if task != "mlm":  # whose loss differs more between languages than between first and last steps
            assert np.mean(values[-fifth:]) < 0.8 * np.mean(values[:fifth]), f"the loss of {task} did not fall"
    run = Run.load(tmp_path / "run")
    assert not raw or perplexity(run.model, pretrained, *raw) < before
    test = {name: [recipe.data.test[name][0].replace("[:200]", "[:80]")] for name in zero_shot}
    matrix = run.evaluate(test)
    assert not matrix.refused
    for name in zero_shot:
        dataset = matrix.results[Condition.parse(name)]
        assert dataset.zero_shot
        baseline = TASKS["pos"].majority(r for corpus in test[name] for r in resolve(corpus, root=DATA).records("tags"))
        assert dataset.scores[0].value > baseline + 5, f"{name}: {dataset.scores[0].value} against {baseline}"


def test_few_examples_of_a_new_cell_help(pretrained, tmp_path):
    """A finished run goes on with 5 and with 50 examples of a cell that it had never seen."""
    base = load("hyperx-single-task", pretrained, ["train.steps=40", "data.validation={}"])
    train_recipe(base, tmp_path / "base")
    test = {"pos/mt": ["ud:mt_mudt/test[:150]"]}
    before = Run.load(tmp_path / "base").evaluate(test).results[Condition("pos", "mt")]
    assert before.zero_shot
    scores = {0: before.scores[0].value}
    for count in (5, 50):
        changes = [f"init_from={tmp_path / 'base'}", f'data.train={{pos/mt: "ud:mt_mudt/train[:{count}]"}}']
        train_recipe(load("few-shot", pretrained, changes), tmp_path / str(count))
        dataset = Run.load(tmp_path / str(count)).evaluate(test).results[Condition("pos", "mt")]
        assert not dataset.zero_shot
        scores[count] = dataset.scores[0].value
    assert scores[50] > scores[5] > scores[0], scores
    assert scores[50] > scores[0] + 5, scores
