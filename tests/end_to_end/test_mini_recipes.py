"""Every encoder method, trained for a minute or less on real corpora and a real pretrained backbone.

The recipes are those of ``recipes/mini``, with the backbone at hand and fewer steps. What is shown is that they learn,
and that what was learnt from English (or some languages) holds in others; how well they do is measured elsewhere.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from polyloom.config import load_recipe
from polyloom.data.catalog import resolve
from polyloom.evaluate.baseline import majority
from polyloom.runs import load_run, train_recipe
from polyloom.types import Condition
from tests.shared import DATA, needs_data

RECIPES = Path(__file__).parents[2] / "recipes" / "mini"
pytestmark = needs_data
# Name of the recipe, changes, zero-shot cells that must beat the majority.
CASES = {
    "full": (["train.steps=60"], ["pos/de", "pos/tr", "pos/mt"]),
    "madx": ([], ["pos/de", "pos/tr", "pos/mt"]),
    "badx": ([], ["pos/mt"]),
    "badx-1-5": (["stages.languages.mixture.ratio=[1, 5]"], ["pos/mt"]),
    "multilingual": ([], ["pos/de", "pos/tr", "pos/mt"]),
    "hyperx-single-task": ([], ["pos/de", "pos/tr", "pos/mt"]),
    "hyperx": (["train.steps=120"], ["pos/de", "pos/tr", "pos/mt"]),
    "hyperx-mixed-language": ([], ["pos/de", "pos/tr"]),
    "psf": ([], ["pos/tr"]),
}


def load(name: str, pretrained: Path, changes: list[str]):
    settings = [f"backbone.name={pretrained}", f"data.root={DATA}", *changes]
    return load_recipe(RECIPES / f"{name}.yaml", settings)


def losses(folder: Path) -> dict[tuple[str, str], list[float]]:
    """Losses of every stage and task, in order."""
    found: dict[tuple[str, str], list[float]] = {}
    stage = ""
    for line in (folder / "log.jsonl").read_text().splitlines():
        event = json.loads(line)
        stage = event.get("stage", stage) if event["event"] == "stage" else stage
        for task, loss in event.get("losses", {}).items():
            found.setdefault((stage, task), []).append(loss)
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_learns_and_transfers(case, pretrained, tmp_path):
    changes, zero_shot = CASES[case]
    recipe = load("badx" if case == "badx-1-5" else case, pretrained, changes)
    train_recipe(recipe, tmp_path / "run")
    for (stage, task), values in losses(tmp_path / "run").items():
        tenth = max(len(values) // 5, 1)
        assert np.mean(values[-tenth:]) < np.mean(values[:tenth]), f"{stage}: the loss of {task} did not fall"
    run = load_run(tmp_path / "run")
    test = {name: corpora for name, corpora in recipe.data.test.items() if name in zero_shot}
    matrix = run.evaluate(test)
    assert not matrix.refused
    for name in zero_shot:
        cell = matrix.cells[Condition.parse(name)]
        assert cell.zero_shot
        corpora = [resolve(corpus, root=DATA) for corpus in test[name]]
        baseline = majority(Condition.parse(name).task, corpora)
        assert cell.scores[0].value > baseline + 5, f"{name}: {cell.scores[0].value} against {baseline}"


def test_few_examples_of_a_new_cell_help(pretrained, tmp_path):
    """A finished run goes on with 5, 10, 20 and 50 examples of a cell that it had never seen."""
    base = load("hyperx-single-task", pretrained, ["train.steps=40", "data.validation={}"])
    train_recipe(base, tmp_path / "base")
    test = {"pos/mt": ["ud:mt_mudt/test[:150]"]}
    before = load_run(tmp_path / "base").evaluate(test).cells[Condition("pos", "mt")]
    assert before.zero_shot
    scores = {0: before.scores[0].value}
    for count in (5, 10, 20, 50):
        changes = [f"start={tmp_path / 'base'}", f'data.train={{pos/mt: "ud:mt_mudt/train[:{count}]"}}']
        train_recipe(load("few-shot", pretrained, changes), tmp_path / str(count))
        cell = load_run(tmp_path / str(count)).evaluate(test).cells[Condition("pos", "mt")]
        assert not cell.zero_shot
        scores[count] = cell.scores[0].value
    assert scores[50] > scores[5] > scores[0], scores
    assert scores[50] > scores[0] + 5, scores
