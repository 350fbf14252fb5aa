"""Run studies: train every run that has no result yet, score it and write the raw result."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from experiments.storage import RESULTS, write_result
from experiments.study import Job, Settings

if TYPE_CHECKING:
    from polyloom.workflows.run import Run

ROOT = Path(__file__).parents[1]
GREEDY = 1


def run_jobs(jobs: Sequence[Job], *, runs: Path, results: Path, workers: int) -> None:
    """Run the jobs that have no result yet."""
    missing = [job for job in jobs if not result_path(job, results).exists()]
    print(f"{jobs[0].study}: {len(jobs)} runs, {len(missing)} to do", file=sys.stderr)
    in_parallel(partial(run_job, runs=runs, results=results), missing, workers=workers)


def in_parallel(work: Callable[[Any], str], items: Sequence[Any], *, workers: int) -> None:
    """Do the work for all items in processes of one thread each, and print the returned messages to stderr."""
    start, context = time.monotonic(), get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=use_one_thread) as pool:
        for number, future in enumerate(as_completed([pool.submit(work, item) for item in items]), start=1):
            minutes = (time.monotonic() - start) / 60
            print(f"[{number}/{len(items)}, {minutes:.1f} min] {future.result()}", file=sys.stderr, flush=True)


def use_one_thread() -> None:
    """Limit torch to one thread: several processes are faster than several threads."""
    import torch  # noqa: PLC0415 - slow import, only needed in workers

    torch.set_num_threads(1)


def result_path(job: Job, results: Path = RESULTS) -> Path:
    """Return the path of a job's raw result."""
    return results / job.study / f"{job.name}.json"


def run_job(job: Job, runs: Path, results: Path) -> str:
    """Train or resume one run, score it, write the result and return a summary."""
    from polyloom.backbones.decoding import Decoding  # noqa: PLC0415 - imports torch
    from polyloom.config import parse_recipe  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    folder = runs / job.study / job.name
    train_recipe(parse_recipe(job.recipe, source=job.name), folder)
    run, training = Run.load(folder), training_summary(folder)
    run.predictor.decoding = Decoding(beams=GREEDY)
    matrix = run.evaluate().to_dict()
    scores = scores_of(matrix)
    further = {"added": add_languages(job, folder), "swapped": swap_weights(job, run)}
    about: Settings = {"study": job.study, "row": job.row, "seed": job.seed, "commit": commit()}
    about |= {"recipe": portable(job.recipe), "training": training, "versions": matrix["run"]["versions"]}
    about |= backbone_hash(job.recipe)
    write_result(
        result_path(job, results), about | {"scores": scores} | {key: value for key, value in further.items() if value}
    )
    listed = ", ".join(f"{condition} {score:.1f}" for condition, score in scores.items())
    return f"{job.study}/{job.name} {training['seconds']:.0f} s: {listed}"


def scores_of(matrix: Settings) -> dict[str, float]:
    """Return the first score of every condition of an evaluation."""
    return {name: result["scores"][0]["value"] for name, result in matrix["results"].items()}


def swap_weights(job: Job, run: "Run") -> dict[str, dict[str, float]]:
    """Score conditions with the weights of others, for each kind of swap."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.probe.swap import DonatedCache  # noqa: PLC0415

    results = {}
    for kind, donors in job.swaps.items():
        cache = DonatedCache(run.model)
        cache.donated = {Condition.parse(one): Condition.parse(other) for one, other in donors.items()}
        run.predictor.cache = cache
        corpora = {name: job.recipe["data"]["test"][name] for name in donors}
        results[kind] = scores_of(run.evaluate(corpora).to_dict())
    return results


def add_languages(job: Job, folder: Path) -> dict[str, Settings]:
    """Add each of the job's languages to the trained run by itself, and return the scores before and after."""
    from polyloom.loading import load_run_dir  # noqa: PLC0415
    from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language  # noqa: PLC0415

    results = {}
    for one in job.adds:
        data, settings = NewLanguageData(**one.data), AddLanguageConfig(seed=job.seed, **one.settings)
        with TemporaryDirectory() as into:
            added = add_language(load_run_dir(folder), one.language, Path(into), data=data, settings=settings)
        shown = {key: getattr(added, key) for key in ("donors", "before", "after", "held_out", "seconds")}
        results[one.name or one.language] = shown
    return results


@cache
def commit() -> str:
    """Return the last commit of the package, with ``-dirty`` if its files differ from it."""
    last = _git("log", "-1", "--format=%h", "--abbrev=10", "--", "src").stdout.strip()
    return last if _git("diff", "--quiet", "HEAD", "--", "src").returncode == 0 else f"{last}-dirty"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command


def backbone_hash(recipe: Settings) -> Settings:
    """Hash the weights of a recipe's pretrained backbone: rows of a seed must have the same."""
    files = sorted(Path(recipe["backbone"].get("name", "")).glob("*.safetensors"))
    return {"backbone": [sha256(file.read_bytes()).hexdigest() for file in files]} if files else {}


def portable(recipe: Settings) -> Settings:
    """Remove the paths of this machine from a recipe."""
    paths = {key: Path(path).name for key, path in recipe["backbone"].items() if path and key in ("name", "tokenizer")}
    return recipe | {"backbone": recipe["backbone"] | paths}


def training_summary(folder: Path) -> Settings:
    """Summarise a run's log: time, steps, tokens, trainable parameters, losses and validation scores."""
    events, steps = _events(folder), steps_of(folder)
    stages = {event["stage"]: event["parameter_report"] for event in events if event["event"] == "stage"}
    trained = {
        group["name"]: group["trained"]
        for parameter_report in stages.values()
        for group in parameter_report
        if group["trained"]
    }
    curve = [[step["total"], *step["losses"].items()] for step in steps if step["total"] % 50 == 0]
    return {
        "seconds": sum(sum(step["seconds"].values()) for step in steps),
        "steps": len(steps),
        "tokens": sum(step["tokens"] for step in steps),
        "parameters": trained,
        "losses": curve,
        "validation": [event["scores"] for event in events if event["event"] == "validation"],
    }


def steps_of(folder: Path) -> list[Settings]:
    """Read the steps of a run's log in order; of repeated ones the last."""
    return list({event["total"]: event for event in _events(folder) if event["event"] == "step"}.values())


def _events(folder: Path) -> list[Settings]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
