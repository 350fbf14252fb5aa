"""Run named experiments, all their rows and seeds, and keep the raw results: ``python experiments/run.py transfer``.

What is finished is not run again, and what was interrupted goes on. Results are JSON in docs/results, one file a run.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from job import RESULTS, Job
from plans import experiments, jobs
from translations import make_vocabulary, score_translations

from polyloom.errors import PolyloomError
from polyloom.io.yaml import dump_yaml

if TYPE_CHECKING:
    from polyloom.workflows.runs import Run


def main() -> None:
    """Run what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="+", metavar="EXPERIMENT", help=f"one of: {', '.join(experiments())}")
    parser.add_argument("--backbone", help="a directory or name on the Hub, instead of the one in methods.yaml")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for checkpoints and logs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for results")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, of one thread each")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--recipes", action="store_true", help="print the recipes (for polyloom train) and stop")
    options = parser.parse_args()
    for experiment in options.experiments:
        every = list(jobs(experiment, runs=options.runs, backbone=options.backbone))
        chosen = [job for job in every if options.only in job.name]
        if not chosen:
            names = ", ".join(job.name for job in every)
            raise PolyloomError(f"--only {options.only}: {experiment} has no such row. It has {names}.")
        if options.recipes:
            sys.stdout.writelines(f"--- # {experiment}/{job.name}\n{dump_yaml(job.recipe)}" for job in chosen)
        else:
            run_all(chosen, options)


def run_all(chosen: list[Job], options: argparse.Namespace) -> None:
    """Run what has no result yet, some at a time."""
    left = [job for job in chosen if not is_done(job, options.results)]
    print(f"{chosen[0].experiment}: {len(chosen)} runs, {len(left)} to do", file=sys.stderr)
    started, context = time.monotonic(), get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=one_thread) as pool:
        waiting = {pool.submit(run, job, options.runs, options.results): job for job in left}
        for number, future in enumerate(as_completed(waiting), start=1):
            minutes = (time.monotonic() - started) / 60
            print(f"[{number}/{len(left)}, {minutes:.1f} min] {future.result()}", file=sys.stderr, flush=True)


def one_thread() -> None:
    """Several runs at a time are faster than several threads."""
    import torch  # noqa: PLC0415 - takes seconds, and only workers need it

    torch.set_num_threads(1)


def result_path(job: Job, results: Path) -> Path:
    """Where a run's result is kept."""
    return results / job.experiment / f"{job.name}.json"


def read_result(job: Job, results: Path) -> dict[str, Any]:
    """What is known of a run already."""
    path = result_path(job, results)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def is_done(job: Job, results: Path) -> bool:
    """Whether a run has a result, with the weights of all languages that shall take the place of its own."""
    swaps = read_result(job, results).get("swaps")
    return swaps is not None and all(set(donors) <= swaps.get(c, {}).keys() for c, donors in job.swaps.items())


def run(job: Job, runs: Path, results: Path) -> str:
    """Train (or go on with) one run, score what is not scored yet, write the result; says how it went."""
    from polyloom.config import parse_recipe  # noqa: PLC0415
    from polyloom.workflows.runs import load_run, train_recipe  # noqa: PLC0415

    folder, translates = runs / job.experiment / job.name, "mt" in job.recipe["tasks"]
    if translates and not (vocabulary := Path(job.recipe["backbone"]["tokenizer"])).exists():
        make_vocabulary(vocabulary)
    recipe = parse_recipe(job.recipe, source=job.name)
    if not (before := read_result(job, results)):
        train_recipe(recipe, folder)
    trained = load_run(folder)
    learnt = training(folder)
    about: dict[str, Any] = {"experiment": job.experiment, "row": job.row, "seed": job.seed}
    test = recipe.data.test
    scored = score_translations(trained, job, test) if translates else score(trained, job, test, before)
    result = about | {"recipe": portable(job.recipe), "training": learnt} | scored
    path = result_path(job, results)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    partial.replace(path)
    scores = (f"{c} {cell['scores'][0]['value']:.1f}" for c, cell in result["cells"].items())
    return f"{job.experiment}/{job.name} {learnt['seconds']:.0f} s: {', '.join(scores)}"


def score(trained: "Run", job: Job, test: Mapping[str, Sequence[str]], before: dict[str, Any]) -> dict[str, Any]:
    """Scores of all conditions, and with the weights of other languages, as far as they are not known yet."""
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    matrix = before | {"run": before} if before else trained.evaluate(test).to_dict()
    swaps: dict[str, dict[str, Any]] = before.get("swaps", {})
    baselines = {}
    for condition, donors in job.swaps.items():
        task = condition.partition("/")[0]
        kind = TASKS[task].kind
        records = (record for name in test[condition] for record in resolve(name).records(kind))
        baselines[condition] = TASKS[task].majority(records)
        for donor in donors:
            if donor in swaps.get(condition, {}):
                continue
            scored = trained.evaluate({f"{task}/{donor}": test[condition]}).to_dict()["cells"]
            swaps.setdefault(condition, {})[donor] = scored[f"{task}/{donor}"]
    return {
        "cells": matrix["cells"],
        "refused": matrix["refused"],
        "swaps": swaps,
        "baselines": baselines,
        "versions": matrix["run"]["versions"],
    }


def portable(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe without the paths of this machine."""
    paths = {key: Path(path).name for key, path in recipe["backbone"].items() if key in ("name", "tokenizer")}
    backbone = recipe["backbone"] | paths
    return (
        recipe
        | {"backbone": backbone}
        | ({"init_from": Path(recipe["init_from"]).name} if "init_from" in recipe else {})
    )


def training(folder: Path) -> dict[str, Any]:
    """What a run's log says of its training: how much was learnt from what, for how long, with what in mind."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = {event["total"]: event for event in events if event["event"] == "step"}  # of repeated ones the last
    stages = {event["stage"]: event["parameter_report"] for event in events if event["event"] == "stage"}
    trained = {
        group["name"]: group["trained"]
        for parameter_report in stages.values()
        for group in parameter_report
        if group["trained"]
    }
    curve = [[total, *event["losses"].items()] for total, event in sorted(steps.items()) if total % 10 == 0]
    return {
        "seconds": sum(sum(event["seconds"].values()) for event in steps.values()),
        "steps": len(steps),
        "tokens": sum(event["tokens"] for event in steps.values()),
        "parameters": trained,
        "losses": curve,
        "validation": [event["scores"] for event in events if event["event"] == "validation"],
    }


if __name__ == "__main__":
    try:
        main()
    except PolyloomError as error:
        sys.exit(f"error: {error}")
