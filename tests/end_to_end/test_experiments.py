"""The experiments behind docs/results.md: fair budgets, clean splits, a runner that resumes, a true page."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from experiments.add_languages import PLAN, additions
from experiments.jobs import experiments, jobs
from experiments.read import CORPORA, GROUPS, resampled, results, select, source_losses, swapped
from experiments.run import portable
from experiments.storage import RESULTS, read_plan
from experiments.tables.add_languages import judged, near

from polyloom.config import parse_recipe
from polyloom.config.renamed import upgrade
from polyloom.data.catalog import resolve
from polyloom.data.records import Bitext
from polyloom.workflows.add_language import InitFrom
from tests.shared import DATA, lines_of, needs_data

ROOT = Path(__file__).parents[2]
NAMES = [
    *("tuning", "transfer", "conditioning", "short", "language-stage", "bilingual", "ablations", "few-shot"),
    *("mt-table", "mt-analysis", "head", "start"),
]
JOBS = {f"{name}/{job.name}": job for name in NAMES for job in jobs(name, runs=Path("runs"))}
TINY = """
seeds: [0, 1]
steps: { mlm: 2, pos: 2 }
rows:
  one: { method: hyperx, languages: [en, mt, kk], train: [pos/en, mlm], test: [pos/mt], swap: [0] }
  two: { method: madx, languages: [en, mt], train: [pos/en, mlm], test: [pos/mt] }
"""


def run_experiments(*arguments):
    environment = os.environ | {"POLYLOOM_DATA": str(DATA), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


def test_all_experiments_are_known_and_made():
    assert experiments() == sorted(NAMES)
    assert f"EXPERIMENTS = {' '.join(NAMES)}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", JOBS)
def test_recipes_are_valid(name):
    recipe = parse_recipe(JOBS[name].recipe)
    assert recipe.data.train
    assert recipe.data.test


@needs_data
def test_zero_shot_sentences_were_not_read_before():
    """Neither as raw text nor with labels of the other task; a handful of short ones occurs everywhere."""
    read = cache(lambda name: lines_of(name, DATA))
    cells: dict[Any, set[str]] = {}
    for recipe in (parse_recipe(job.recipe) for job in JOBS.values() if "mt" not in job.recipe["tasks"]):
        for condition, corpora in recipe.data.test.items():
            language = condition.rpartition("/")[2]
            learnt = [c for cell, c in recipe.data.train.items() if cell.endswith(f"/{language}")]
            if condition not in recipe.data.train:
                cells.setdefault((condition, corpora), set()).update(name for some in learnt for name in some)
    for (condition, corpora), names in cells.items():
        known = {text for name in names for text in read(name)}
        scored = [text for name in corpora for text in read(name)]
        assert sum(text in known for text in scored) <= 0.03 * len(scored), condition


@needs_data
def test_no_translated_sentence_is_learnt_from_in_any_pair():
    """No English one of any language; of pairs that nobody trains, none of either side."""
    recipe = parse_recipe(JOBS["mt-table/dense-0"].recipe)
    assert {len(corpora) for split in (recipe.data.train, recipe.data.test) for corpora in split.values()} == {1}

    def sides(condition: str, name: str) -> Iterator[tuple[str, str]]:
        source, target = condition.split("/")[1:]
        for record in resolve(name, root=DATA).records("bitext", direction=(source, target)):
            assert isinstance(record, Bitext)
            yield from ((source, record.source), (target, record.target))

    known = {side for condition, (name,) in recipe.data.train.items() for side in sides(condition, name)}
    english = {text for language, text in known if language == "eng"}
    assert len(english) > 10_000
    for condition, (name,) in recipe.data.test.items():
        trained = condition in recipe.data.train
        scored = [side for side in sides(condition, name) if not trained or side[0] == "eng"]
        assert scored
        assert not any(text in english if trained else (language, text) in known for language, text in scored)


def test_every_translation_method_has_the_same_budget_and_the_same_text():
    recipes = {name: JOBS[name].recipe for name in JOBS if name.startswith(("mt-table", "mt-analysis"))}
    later = recipes.pop("mt-analysis/without-por-0")  # with a vocabulary of its own
    assert {n for n in recipes["mt-table/dense-0"]["data"]["train"] if n not in later["data"]["train"]} == {
        "mt/eng/por", "mt/por/eng",
    }  # fmt: skip
    for key in ("backbone", "tasks", "mixture"):
        assert all(recipe[key] == recipes["mt-table/dense-0"][key] for recipe in recipes.values()), key
    for name, recipe in recipes.items():
        groups = recipe["optim"].get("groups") or {}
        assert recipe["optim"] | {"groups": {}} == recipes["mt-table/dense-0"]["optim"] | {"groups": {}}, name
        generated = recipe["method"]["name"] == "hyper-adapters" and not name.partition("/")[2].startswith(
            ("plain", "res")
        )
        assert groups == ({"hypernetwork": 1e-3, "embeddings": 3e-2} if generated else {}), name
        assert recipe["train"] | {"seed": 0} == recipes["mt-table/dense-0"]["train"], name
        if "split" not in name:
            assert recipe["data"]["train"] == recipes["mt-table/dense-0"]["data"]["train"], name
    whole, halves = (recipes[name]["data"]["train"] for name in ("mt-table/dense-0", "mt-analysis/split-hyper-33-0"))
    assert halves["mt/eng/spa-a"] == "tatoeba-mt:eng-spa/train#eng,spa-a[0:5000]"
    assert halves["mt/spa-b/eng"] == "tatoeba-mt:eng-spa/train#eng,spa-b[5000:10000]"
    assert {name for name in whole if name not in halves} == {
        f"mt/{pair}" for language in ("spa", "deu", "rus", "tur") for pair in (f"eng/{language}", f"{language}/eng")
    }


def test_relatives_are_of_the_same_group_and_strangers_of_another_with_as_much_to_learn_from():
    shared = read_plan("directions")
    group = {language: name for name, some in shared["groups"].items() for language in some}
    assert sorted(group) == sorted(shared["languages"])
    for language in shared["related"]:
        relative, stranger = shared["related"][language], shared["distant"][language]
        assert group[language] == group[relative] != group[stranger]
        assert {relative, stranger} <= set(shared["resources"]["high"])


def steps_by_task(recipe):
    """Optimizer steps of each task, in stages or by the weights of a mixture."""
    found: dict[str, float] = {}
    train = recipe.data.train
    for stage in recipe.stages.values() or [recipe]:
        raw = stage is recipe.stages.get("languages")
        cells = [c for c in train if stage is recipe or c.startswith("mlm/") == raw]
        weights = stage.mixture.weights or dict.fromkeys(cells, 1.0)
        for cell in cells:
            task = cell.partition("/")[0]
            share = weights[cell] / sum(weights[c] for c in cells)
            found[task] = found.get(task, 0) + share * stage.train.steps
    return {task: round(steps, 6) for task, steps in found.items()}


def test_no_result_is_left_of_a_run_that_no_experiment_has():
    stored = {f"{path.parent.name}/{path.stem}" for path in RESULTS.glob("*/*.json")}
    added = {f"add-languages/{addition.name}" for addition in additions()}
    analyses = ("layers/", "sources/", "magnitudes/")
    assert {name for name in stored - JOBS.keys() - added if not name.startswith(analyses)} == set()


@pytest.mark.parametrize("name", [name for name in JOBS if name.startswith(("transfer", "tuning"))])
def test_every_method_has_the_same_budget_for_every_task(name):
    budgets = {"transfer": {"mlm": 700, "pos": 200, "ner": 200}, "tuning": {"mlm": 100, "pos": 100, "ner": 100}}
    recipe = parse_recipe(JOBS[name].recipe)
    expected = {task: budgets[JOBS[name].experiment][task] for task in recipe.tasks}
    assert steps_by_task(recipe) == expected
    assert (recipe.train.rows_per_batch, recipe.train.max_length, recipe.train.dropout) == (16, 128, False)


def test_strangers_are_of_another_family_and_peers_of_the_same_group_too():
    corpora = read_plan("corpora")
    families, groups = corpora["families"], [corpora["seen"], corpora["unseen"]]
    for kind in ("distant", "peer"):
        for language, donor in corpora[kind].items():
            assert families[language] != families[donor], (kind, language)
            assert kind == "distant" or any({language, donor} <= set(group) for group in groups), language
    for group in groups:  # no other choice than the rule's
        chosen = [language for language in group if language != "en"]
        for place, language in enumerate(chosen):
            strangers = (o for o in chosen[place:] + chosen[:place] if families[o] != families[language])
            assert corpora["peer"][language] == next(strangers)


@needs_data
def test_every_corpus_is_there():
    recipes = [parse_recipe(job.recipe) for job in JOBS.values()]
    corpora = {c for r in recipes for split in (r.data.train, r.data.test) for some in split.values() for c in some}
    added = PLAN["data"].values()
    corpora |= {about[kind] for about in added for kind in ("text", "pairs") if kind in about}
    corpora |= {corpus for about in added for corpus in about["test"].values()}
    for name in sorted(corpora):
        assert resolve(name, root=DATA).sha256


@needs_data
@pytest.mark.nightly
def test_an_experiment_runs_once_and_keeps_everything_needed_to_trace_a_number(tmp_path, pretrained):
    (tmp_path / "tiny.yaml").write_text(TINY)
    arguments = ["run", str(tmp_path / "tiny.yaml"), "--backbone", str(pretrained)]
    arguments += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--jobs", "1"]
    done = run_experiments(*arguments, "--only", "one")
    assert done.returncode == 0, done.stderr
    found = sorted((tmp_path / "results" / "tiny").iterdir())
    assert [path.name for path in found] == ["one-0.json", "one-1.json"]
    text = found[0].read_text()
    assert str(tmp_path) not in text, "no paths of this machine"
    result = json.loads(text)
    assert result["training"]["steps"] == 4
    assert result["training"]["parameters"]["hypernetwork"] > 0
    score = result["results"]["pos/mt"]["scores"][0]
    assert "ud:mt_mudt/test" in score["signature"]
    assert len(score["statistics"]["total"]) == 300
    assert result["swaps"]["pos/mt"].keys() == {"kk"}
    assert result["swaps"]["pos/mt"]["kk"]["scores"][0]["statistics"] != score["statistics"]
    assert 0 < result["baselines"]["pos/mt"] < 50
    before = found[0].stat().st_mtime_ns
    again = run_experiments(*arguments, "--only", "-0")
    assert "2 runs, 1 to do" in again.stderr
    assert found[0].stat().st_mtime_ns == before
    assert (tmp_path / "results" / "tiny" / "two-0.json").exists()


def test_help_does_not_wait_for_torch():
    code = "import sys, experiments.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_initialisation_of_the_plan_is_one_that_adding_a_language_has():
    planned = {init_from for about in PLAN["runs"].values() for init_from in about["init_from"]}
    assert planned == set(get_args(InitFrom))


def test_an_unknown_table_is_reported():
    done = run_experiments("draw", "--show", "transfr")
    assert done.returncode == 1
    assert "transfer" in done.stderr


def test_an_unknown_experiment_is_said():
    done = run_experiments("run", "transfr")
    assert done.returncode == 1
    assert "there is none" in done.stderr
    assert "transfer" in done.stderr


def test_a_row_that_does_not_exist_is_said():
    done = run_experiments("run", "transfer", "--only", "hyperz")
    assert done.returncode == 1
    assert "hyperx-multi-0" in done.stderr


FORMER_DEFAULTS: dict[str, dict[str, Any]] = {
    "hyperx": {"train_head": False},
    "madx": {"train_head": False},
    "badx": {"train_head": False},
    "multilingual": {"train_head": False},
    "lang-adapters": {"init": "xavier"},
    "pair-adapters": {"init": "xavier"},
    "hyper-adapters": {"init": "hyper"},
}


def without_default_rates(recipe):
    """A recipe read, without groups that learn at the common rate anyway."""
    optim = recipe["optim"]
    groups = {group: lr for group, lr in optim.get("groups", {}).items() if lr != optim["lr"]}
    return parse_recipe(recipe | {"optim": optim | {"groups": groups}})


@pytest.mark.parametrize(
    "name", [f"{p.parent.name}/{p.stem}" for name in NAMES for p in (RESULTS / name).glob("*.json")]
)
def test_every_result_is_of_the_recipe_that_its_experiment_has(name):
    result = json.loads((RESULTS / f"{name}.json").read_text())
    expected = portable(JOBS[name].recipe) | {"backbone": result["recipe"]["backbone"]}
    stored, _ = upgrade(result["recipe"])  # settings may have had former names
    stored["method"] = FORMER_DEFAULTS.get(stored["method"]["name"], {}) | stored["method"]
    assert without_default_rates(stored) == without_default_rates(expected)


@pytest.mark.parametrize("run", ["hyperx-multi-0", "madx-0"])
def test_own_weights_in_all_layers_score_as_the_run_did_and_english_is_the_same_in_any(run):
    cells = json.loads((RESULTS / "layers" / f"{run}.json").read_text())["results"]
    scored = json.loads((RESULTS / "transfer" / f"{run}.json").read_text())["results"]
    for condition, cell in cells["all"].items():
        assert cell["scores"] == scored[condition]["scores"], condition
    assert cells["none"]["pos/en"] == cells["lower"]["pos/en"] == cells["all"]["pos/en"]
    assert cells["none"]["pos/mt"]["scores"] != cells["lower"]["pos/mt"]["scores"] != cells["all"]["pos/mt"]["scores"]


@pytest.mark.parametrize("run", [name for name in JOBS if name.startswith("mt-table/")])
def test_every_direction_reads_its_source(run):
    losses = source_losses(run.removeprefix("mt-table/"))
    assert losses.keys() == JOBS[run].recipe["data"]["train"].keys()
    for direction, loss in losses.items():
        assert loss["own"] < loss["other"], direction


@pytest.mark.parametrize(
    ("experiment", "row", "task"),
    [("transfer", "hyperx-multi", "pos"), ("conditioning", "long", "pos"), ("conditioning", "long", "ner")],
)
def test_zero_shot_hyperx_beats_the_most_frequent_tag_and_the_weights_of_a_stranger(experiment, row, task):
    found = results(experiment)[row]
    own, wrong = (select(row, task, GROUPS["all"]) for row in swapped(found, CORPORA["peer"]))
    assert len(own) == (13 if task == "pos" else 9)
    assert np.quantile(resampled(own) - resampled(wrong), 0.025) > 0
    for some, condition in own:
        assert some.scores[0][condition].value > found.runs[0]["baselines"][condition] + 5, condition


def test_headline_rows_have_three_seeds():
    for row in ("full-multi", "madx", "hyperx-multi"):
        assert [run["seed"] for run in results("transfer")[row].runs] == [0, 1, 2]


@pytest.mark.nightly
def test_the_page_says_what_the_results_say():
    done = run_experiments("draw", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["hyperx", "madx"])
def test_the_suggested_donor_is_nearly_as_good_as_the_best(method):
    assert len(judged(method)) == 17
    assert len(near(method)) >= 8
