"""Run experiments: train every job that has no result yet, score it and write the raw result."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.jobs import HALVES, Job
from experiments.storage import Settings, read_result, write_result


def run_jobs(jobs: Sequence[Job], *, runs: Path, results: Path, workers: int) -> None:
    """Run the jobs that have no complete result yet."""
    missing = [job for job in jobs if not is_done(job, results)]
    print(f"{jobs[0].experiment}: {len(jobs)} runs, {len(missing)} to do", file=sys.stderr)
    in_parallel(partial(run_job, runs=runs, results=results), missing, workers=workers)


def in_parallel(work: Callable[[Any], str], items: Sequence[Any], *, workers: int) -> None:
    """Do the work for all items in processes of one thread each, and print the returned messages to stderr."""
    start, context = time.monotonic(), get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_use_one_thread) as pool:
        for number, future in enumerate(as_completed([pool.submit(work, item) for item in items]), start=1):
            minutes = (time.monotonic() - start) / 60
            print(f"[{number}/{len(items)}, {minutes:.1f} min] {future.result()}", file=sys.stderr, flush=True)


def _use_one_thread() -> None:
    """Limit torch to one thread: several processes are faster than several threads."""
    import torch  # noqa: PLC0415 - slow import, only needed in workers

    torch.set_num_threads(1)


def result_path(job: Job, results: Path) -> Path:
    """Return the path of a job's raw result."""
    return results / job.experiment / f"{job.name}.json"


def is_done(job: Job, results: Path) -> bool:
    """Return whether a job has a result that includes the scores with all its donors."""
    swaps = read_result(result_path(job, results)).get("swaps")
    return swaps is not None and all(set(donors) <= swaps.get(c, {}).keys() for c, donors in job.swaps.items())


def run_job(job: Job, runs: Path, results: Path) -> str:
    """Train or resume one run, score it, write the result and return a summary."""
    from experiments.score import score_labelling, score_translation  # noqa: PLC0415 - imports torch
    from polyloom.config import parse_recipe  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    folder, translates = runs / job.experiment / job.name, "mt" in job.recipe["tasks"]
    if translates and not (vocabulary := Path(job.recipe["backbone"]["tokenizer"])).exists():
        make_vocabulary(vocabulary, job.directions)
    recipe = parse_recipe(job.recipe, source=job.name)
    if not (known := read_result(result_path(job, results))):
        train_recipe(recipe, folder)
    run, training, test = Run.load(folder), training_summary(folder), recipe.data.test
    scored = score_translation(run, job, test) if translates else score_labelling(run, job, test, known)
    about: dict[str, Any] = {"experiment": job.experiment, "row": job.row, "seed": job.seed}
    write_result(result_path(job, results), about | {"recipe": portable(job.recipe), "training": training} | scored)
    scores = (f"{condition} {result['scores'][0]['value']:.1f}" for condition, result in scored["results"].items())
    return f"{job.experiment}/{job.name} {training['seconds']:.0f} s: {', '.join(scores)}"


def make_vocabulary(path: Path, directions: Settings) -> None:
    """Train the vocabulary of translation experiments, or one without a language if the folder's name says so.

    It has language tokens for halves of languages too.
    """
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415

    common, *others = directions["languages"]
    texts: dict[str, list[str]] = {common: []}
    without = path.name.partition("-without-")[2]
    for other in (language for language in others if language != without):
        pairs: list[Any] = list(resolve(f"{directions['pairs']}:{common}-{other}/train").records("bitext"))
        texts[common] += [pair.source for pair in pairs]
        texts[other] = [pair.target for pair in pairs]
    tokens = [*texts, *(half for language in directions["split"] for half in HALVES[language])]
    train_vocabulary(texts, path, config=VocabularyConfig(size=directions["vocabulary"]), languages=tokens)


def portable(recipe: dict[str, Any]) -> dict[str, Any]:
    """Remove the paths of this machine from a recipe."""
    paths = {key: Path(path).name for key, path in recipe["backbone"].items() if key in ("name", "tokenizer")}
    backbone = recipe["backbone"] | paths
    return (
        recipe
        | {"backbone": backbone}
        | ({"init_from": Path(recipe["init_from"]).name} if "init_from" in recipe else {})
    )


def training_summary(folder: Path) -> dict[str, Any]:
    """Summarise a run's log: time, steps, tokens, trainable parameters, losses and validation scores."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = {event["total"]: event for event in events if event["event"] == "step"}  # the last of repeated ones
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
