"""The studies behind docs/results.md: valid recipes, equal budgets, a runner that resumes, a true page."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from experiments import pretraining
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

from polyloom.config import parse_recipe
from polyloom.data.synthetic.corpus import FAMILY
from polyloom.workflows.planning import plan
from polyloom.workflows.planning.costs import Cost
from tests.shared import DATA, needs_data

ROOT = Path(__file__).parents[2]
JOBS = {f"{study.name}/{job.name}": job for study in STUDIES.values() for job in study.jobs(Path("materials"))}
FIRST = {name: job for name, job in JOBS.items() if job.seed == STUDIES[job.study].seeds[0]}
PRETRAINED = {"family-backbone": FAMILY_STEPS, "me5-6l-continued": CONTINUED_STEPS}
TINY: Settings = {
    "backbone": {"config": {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "intermediate_size": 16, "max_position_embeddings": 64, "pad_token_id": 1}},
    "method": {"name": "full"}, "languages": ["boza", "kepa"], "tasks": {"pos": {}},
    "data": {"train": {"pos/boza": "synthetic:boza/train[:20]"}, "test": {"pos/kepa": "synthetic:kepa/test[:5]"}},
    "train": {"steps": 50, "rows_per_batch": 4, "max_length": 32, "seed": 0},
}  # fmt: skip


def run_experiments(*arguments):
    environment = os.environ | {"POLYLOOM_DATA": str(DATA), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


@pytest.mark.parametrize("name", FIRST)
def test_recipes_are_valid(name):
    assert parse_recipe(FIRST[name].recipe).data.test


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


@pytest.mark.parametrize("name", [name for name in FIRST if name.partition("/")[0] in LABS])
def test_all_rows_of_a_laboratory_have_the_same_steps_on_raw_text_and_on_labels(name):
    recipe = FIRST[name].recipe
    steps, lab = steps_by_task(recipe), LABS[name.partition("/")[0]]
    labelled = sum(lab.steps[task] for task in transfer.TASKS if task in recipe["tasks"])
    assert steps["labelled"] == pytest.approx(labelled)
    if "mlm" in recipe["tasks"]:
        assert steps["mlm"] == pytest.approx(lab.steps["mlm"] * (transfer.MORE_TEXT if "more-text" in name else 1))


@pytest.mark.parametrize("width", translation.WIDTHS)
@pytest.mark.parametrize("languages", translation.LANGUAGES)
def test_rows_of_a_cell_of_the_map_have_as_many_parameters(width, languages):
    total = {}
    for name in translation.methods(width, languages):
        job = JOBS[f"map/{name}-d{width}-l{languages}-s{translation.STEPS}-0"]
        planned = plan(parse_recipe(job.recipe | {"backbone": job.recipe["backbone"] | {"tokenizer": None}}))
        cost = planned.methods[job.recipe["method"]["name"]]
        assert isinstance(cost, Cost)
        total[name] = cost.total_parameters
    added = total["stored"] - total["dense"]
    assert added == translation.stored_parameters(width, languages)
    assert 0.93 * added < total["generated"] - total["dense"] <= added
    if "small" in total:
        assert total["wide"] - total["dense"] == pytest.approx(added, rel=0.02)
        assert total["small"] - total["dense"] < 0.6 * added


def test_a_finished_run_is_not_repeated_and_the_result_says_how_it_came_about(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("experiments.run.in_parallel", lambda work, items, workers: [work(item) for item in items])
    vocabulary = tmp_path / "vocabulary"
    family_vocabulary(vocabulary, languages=("boza",), size=200, mask=True)
    recipe = TINY | {"backbone": TINY["backbone"] | {"tokenizer": str(vocabulary)}}
    recipe["backbone"]["config"] = recipe["backbone"]["config"] | {"vocab_size": 220}
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


def test_languages_are_added_to_a_trained_run_each_by_itself(tmp_path):
    vocabulary = tmp_path / "vocabulary"
    family_vocabulary(vocabulary, languages=("boza",), size=200, mask=True)
    config = TINY["backbone"]["config"] | {"vocab_size": 220}
    recipe = TINY | {
        "backbone": {"tokenizer": str(vocabulary), "config": config},
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


def test_directions_are_scored_once_more_with_the_weights_of_a_relative(tmp_path):
    languages, vocabulary = family(4), tmp_path / "vocabulary"
    family_vocabulary(vocabulary, languages=languages, size=300)
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
    recipe["data"] |= {
        "validation": {},
        "test": {direction: corpus.replace(":80]", ":3]") for direction, corpus in own.items()},
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


def test_help_comes_at_once_and_mistakes_are_explained():
    code = "import sys, experiments.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    for arguments, mistake in (
        (("run", "familly"), "Did you mean 'family'?"),
        (("run", "map", "--only", "hyperz"), "map has no such row"),
        (("draw", "--show", "clams"), "Did you mean 'claims'?"),
    ):
        done = run_experiments(*arguments)
        assert done.returncode == 1
        assert mistake in done.stderr


def test_raw_results_are_of_the_recipe_as_it_is_now():
    for path in sorted(RESULTS.glob("*/*.json")):
        found = json.loads(path.read_text())
        assert not found["commit"].endswith("dirty"), path
        if found["study"] == pretraining.STUDY:
            assert found["recipe"]["train"]["steps"] == PRETRAINED[found["row"]]
            continue
        job = JOBS[f"{found['study']}/{found['row']}-{found['seed']}"]
        assert found["recipe"] == json.loads(json.dumps(portable(job.recipe))), path


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
    for claim in read_claims():
        for study in claim["studies"]:
            *_, verdict, why, _ = line(claim, study)
            assert verdict == "agrees" or why, claim["claim"]


def test_the_page_says_what_the_results_say():
    done = run_experiments("draw", "--check")
    assert done.returncode == 0, done.stderr
