"""The studies behind docs/results.md: valid recipes, equal budgets, a runner that resumes, a true page."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from experiments import pretraining
from experiments.__main__ import app
from experiments.claims import line, read_claims
from experiments.materials import (
    CONTINUED_STEPS,
    FAMILY_STEPS,
    family,
    family_pretraining,
    family_vocabulary,
    raw_text,
)  # fmt: skip
from experiments.measures import bits, loss
from experiments.read import average, row, rows
from experiments.run import portable, run_job, run_jobs
from experiments.storage import RESULTS
from experiments.studies import STUDIES, adding, lm, transfer, translation
from experiments.studies.labs import LABS, REAL
from experiments.study import Addition, Job, Settings
from typer.testing import CliRunner

from polyloom.config import parse_recipe
from polyloom.data.synthetic.corpus import FAMILY
from polyloom.errors import PolyloomError
from polyloom.workflows.planning import plan
from tests.shared import DATA, needs_data

ROOT = Path(__file__).parents[2]
PRETRAINED = {"family-backbone": FAMILY_STEPS, "me5-6l-continued": CONTINUED_STEPS}
TINY: Settings = {
    "backbone": {"config": {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": 1,
                            "vocab_size": 320}},
    "method": {"name": "full"}, "languages": ["boza", "kepa"], "tasks": {"pos": {}},
    "data": {"train": {"pos/boza": "synthetic:boza/train[:20]"}, "test": {"pos/kepa": "synthetic:kepa/test[:5]"}},
    "train": {"steps": 50, "rows_per_batch": 4, "max_length": 32, "seed": 0},
}  # fmt: skip


@cache
def jobs() -> dict[str, Job]:
    """All runs of all studies."""
    return {f"{study.name}/{job.name}": job for study in STUDIES.values() for job in study.jobs(Path("materials"))}


def recipes() -> dict[str, Settings]:
    """The recipes of all runs with the first seed of their study."""
    return {name: job.recipe for name, job in jobs().items() if job.seed == STUDIES[job.study].seeds[0]}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """The path of a vocabulary of four languages, smaller than the embeddings of the tiny backbone."""
    path = tmp_path_factory.mktemp("materials") / "vocabulary"
    family_vocabulary(path, languages=family(4), size=300, mask=True)
    return path


def run_experiments(*arguments):
    environment = os.environ | {"POLYLOOM_DATA": str(DATA), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


def test_recipes_are_valid():
    wrong = []
    for name, recipe in recipes().items():
        try:
            if not parse_recipe(recipe).data.test:
                wrong.append(f"{name}: no data to test on")
        except PolyloomError as error:
            wrong.append(f"{name}: {error}")
    assert len(recipes()) > 100
    assert not wrong, "\n".join(wrong)


def test_the_pretraining_is_valid():
    assert parse_recipe(family_pretraining(Path("vocabulary"))).train.steps


@needs_data
def test_the_backbone_of_real_languages_is_not_pretrained_on_those_that_stay_unseen(monkeypatch):
    monkeypatch.setenv("POLYLOOM_DATA", str(DATA))
    text = raw_text()
    codes = {"wo": "wol", "yo": "yor", "bm": "bam"}
    assert codes.keys() == set(REAL.languages()) - set(REAL.seen())
    assert not {corpus.partition(":")[2] for corpus in text.values()} & {*codes, *codes.values()}
    assert {f"{name}-leipzig" for name in REAL.seen()} <= text.keys()


def test_seeds_of_tuning_are_not_scored():
    seeds = {name: set(study.seeds) for name, study in STUDIES.items()}
    tuned, scored = (
        set().union(*(seeds[name] for name in seeds if ("-tuning" in name) is tunes)) for tunes in (True, False)
    )
    assert not tuned & scored
    assert all(len(study.seeds) >= 3 for name, study in STUDIES.items() if not name.endswith("-tuning"))


def steps_by_task(recipe) -> Counter[str]:
    """Count the steps on each task: those of a stage, or shares of a mixture."""
    steps: Counter[str] = Counter()
    for stage in recipe.get("stages", {}).values():
        steps["mlm" if stage["mixture"]["datasets_per_batch"] == transfer.WITH_TEXT else "labelled"] += stage["train"][
            "steps"
        ]
    if not steps:
        weights = recipe["mixture"]["weights"]
        for condition, weight in weights.items():
            task = "mlm" if condition.startswith("mlm/") else "labelled"
            steps[task] += round(recipe["train"]["steps"] * weight / sum(weights.values()), 9)
    return steps


def test_all_rows_of_a_laboratory_have_the_same_steps_on_raw_text_and_on_labels():
    wrong, checked = [], 0
    for name, recipe in recipes().items():
        lab = LABS.get(name.partition("/")[0])
        if lab is None:
            continue
        checked += 1
        expected = {"labelled": sum(lab.steps[task] for task in transfer.TASKS if task in recipe["tasks"])}
        if "mlm" in recipe["tasks"]:
            expected["mlm"] = lab.steps["mlm"] * (transfer.MORE_TEXT if "more-text" in name else 1)
        steps = steps_by_task(recipe)
        if {task: steps[task] for task in expected} != pytest.approx(expected):
            wrong.append(f"{name}: {dict(steps)}, not {expected}")
    assert checked > 20
    assert not wrong, "\n".join(wrong)


def total_parameters(recipe):
    """Count the parameters of a row of the map."""
    planned = plan(parse_recipe(recipe | {"backbone": recipe["backbone"] | {"tokenizer": None}}))
    return planned.costs()[recipe["method"]["name"]].total_parameters


def test_rows_of_a_cell_of_the_map_have_as_many_parameters(monkeypatch):
    monkeypatch.setattr("polyloom.workflows.planning.costs.METHODS", {})  # count the rows' own methods alone
    for width, languages in product(translation.WIDTHS, translation.LANGUAGES):
        cell = f"d{width}-l{languages}-s{translation.STEPS}"
        rows = translation.methods(width, languages)
        total = {row: total_parameters(recipes()[f"map/{row}-{cell}-0"]) for row in rows}
        added = {row: count - total["dense"] for row, count in total.items()}
        assert added["stored"] == translation.stored_parameters(width, languages), cell
        assert 0.93 * added["stored"] < added["generated"] <= added["stored"], cell
        if "small" in added:
            assert added["wide"] == pytest.approx(added["stored"], rel=0.02), cell
            assert added["small"] < 0.6 * added["stored"], cell


def test_a_finished_run_is_not_repeated_and_the_result_says_how_it_came_about(
    tmp_path, vocabulary, monkeypatch, capsys
):
    monkeypatch.setattr("experiments.run.in_parallel", lambda work, items, workers: [work(item) for item in items])
    recipe = TINY | {"backbone": TINY["backbone"] | {"tokenizer": str(vocabulary)}}
    job = Job("tiny", "full", 0, recipe)
    run_jobs([job], runs=tmp_path / "runs", results=tmp_path / "results", workers=1)
    path = tmp_path / "results" / "tiny" / "full-0.json"
    found = json.loads(path.read_text())
    assert found["scores"].keys() == {"pos/kepa"}
    assert found["recipe"] == portable(recipe)
    assert found["recipe"]["backbone"]["tokenizer"] == "vocabulary"
    assert found["commit"]
    assert (found["training"]["steps"], len(found["training"]["losses"])) == (50, 1)
    before = path.stat().st_mtime_ns
    run_jobs([job], runs=tmp_path / "runs", results=tmp_path / "results", workers=1)
    assert path.stat().st_mtime_ns == before
    assert "1 runs, 0 to do" in capsys.readouterr().err


def test_languages_are_added_to_a_trained_run_each_by_itself(tmp_path, vocabulary):
    recipe = TINY | {
        "backbone": TINY["backbone"] | {"tokenizer": str(vocabulary)},
        "method": {"name": "hyper-stack", "adapter_size": 2, "task_adapter_size": 2, "hidden_size": 4},
        "tasks": {"mlm": {}, "pos": {}},
        "data": TINY["data"] | {"train": TINY["data"]["train"] | {"mlm/boza": "synthetic:boza/train[:20]"}},
        "train": TINY["train"] | {"steps": 1},
    }
    data = {"text": "synthetic:neno/train[:20]", "test": {"pos": "synthetic:neno/test[:5]"}}
    adds = [Addition("neno", data, {"steps": 10}), Addition("neno", data, {"steps": 10, "init_from": "mean"}, "mean")]
    run_job(Job("tiny", "stack", 0, recipe, adds), tmp_path / "runs", tmp_path / "results")
    found = json.loads((tmp_path / "results" / "tiny" / "stack-0.json").read_text())["added"]
    assert found.keys() == {"neno", "mean"}
    assert found["neno"]["before"].keys() == found["neno"]["after"].keys() == {"pos/neno"}
    assert {donor for donor, _ in found["neno"]["donors"]} == {"boza", "kepa"}
    before, after = found["neno"]["held_out"]
    assert after >= before


def test_directions_are_scored_once_more_with_the_weights_of_a_relative(tmp_path, vocabulary):
    recipe = translation.recipe(
        {"name": "lang-adapters", "adapter_size": 2},
        tmp_path,
        width=16,
        languages=3,
        steps=1,
        ffn=16,
        lr=0.1,
        added=0.1,
    )
    own = {direction: corpus for direction, corpus in recipe["data"]["test"].items() if direction.endswith("/boza")}
    recipe["backbone"]["tokenizer"] = str(vocabulary)
    recipe["data"] = {
        "train": {direction: f"{corpus}[:50]" for direction, corpus in recipe["data"]["train"].items()},
        "test": {direction: corpus.replace(":80]", ":2]") for direction, corpus in own.items()},
    }
    recipe["train"] = recipe["train"] | {"tokens_per_batch": 256, "seed": 0}
    swaps = dict(translation.relatives(recipe)) | {"own": {direction: direction for direction in own}}
    assert swaps["similar"].keys() == swaps["distant"].keys() == own.keys()
    for direction in own:
        near, far = (
            FAMILY.distance(direction.split("/")[1], swaps[kind][direction].split("/")[1])
            for kind in ("similar", "distant")
        )
        assert near <= far
    run_job(Job("tiny", "swap", 0, recipe, swaps=swaps), tmp_path / "runs", tmp_path / "results")
    found = json.loads((tmp_path / "results" / "tiny" / "swap-0.json").read_text())
    assert found["swapped"]["own"] == found["scores"]
    assert found["swapped"]["similar"].keys() == own.keys()


def test_the_added_languages_are_not_among_the_known():
    assert family(max(adding.KNOWN) + len(adding.ADDED))[max(adding.KNOWN) :] == adding.ADDED


def test_help_comes_at_once():
    code = "import sys, experiments.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_mistakes_are_explained():
    for arguments, mistake in (
        (["run", "map", "--only", "hyperz"], "map has no such row"),
        (["draw", "--show", "clams"], "Did you mean 'claims'?"),
    ):
        assert mistake in str(CliRunner().invoke(app, arguments).exception)
    done = run_experiments("run", "familly")
    assert done.returncode == 1
    assert "Did you mean 'family'?" in done.stderr


def test_raw_results_are_of_the_recipe_as_it_is_now():
    wrong = []
    for path in sorted(RESULTS.glob("*/*.json")):
        found = json.loads(path.read_text())
        if found["commit"].endswith("dirty"):
            wrong.append(f"{path}: of a tree with changes")
        if found["study"] == pretraining.STUDY:
            is_current = found["recipe"]["train"]["steps"] == PRETRAINED[found["row"]]
        else:
            job = jobs()[f"{found['study']}/{found['row']}-{found['seed']}"]
            is_current = found["recipe"] == json.loads(json.dumps(portable(job.recipe)))
        if not is_current:
            wrong.append(f"{path}: of another recipe")
    assert not wrong, "\n".join(wrong)


def test_chosen_learning_rates_are_the_best_of_those_tried():
    """Rates of methods that are not tuned yet are provisional."""
    for width, name in product(translation.WIDTHS, translation.TUNED):
        method = translation.methods(width, 12)[name][0]["name"]
        tried = {lr: f"{name}-d{width}-lr{lr:g}" for lr in translation.RATES[method]}
        if not set(tried.values()) <= rows("map-tuning").keys():
            continue
        losses = {lr: loss(row_name, study="map-tuning").mean for lr, row_name in tried.items()}
        assert translation.BEST[method][width] == min(losses, key=losses.__getitem__), (name, width)
    for lab, name in product(LABS.values(), LABS["real"].rates):
        study, rates = f"{lab.name}-tuning", lab.rates[name]
        if not {f"{name}-lr{lr:g}" for lr in rates} <= rows(study).keys():
            continue
        tuned = {lr: row(study, f"{name}-lr{lr:g}") for lr in rates}
        means = {lr: fmean(average(found, found.runs[0]["scores"]).by_seed) for lr, found in tuned.items()}
        assert lab.best[name] == max(means, key=means.__getitem__), name


def test_chosen_learning_rates_of_language_models_are_the_best_of_those_tried():
    for name, rates in lm.RATES.items():
        tried = {lr: bits(f"{name}-lr{lr:g}", lm.LANGUAGES, study="lm-tuning").mean for lr in rates}
        assert lm.BEST[name] == min(tried, key=tried.__getitem__), name


def test_a_claim_that_is_not_confirmed_has_a_reason():
    wrong = []
    for claim in read_claims():
        for study in claim["studies"]:
            *_, verdict, why, _ = line(claim, study)
            if verdict != "agrees" and not why:
                wrong.append(f"{claim['claim']} ({study})")
    assert not wrong, "\n".join(wrong)


def test_the_page_says_what_the_results_say():
    done = run_experiments("draw", "--check")
    assert done.returncode == 0, done.stderr
