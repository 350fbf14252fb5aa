"""Two short runs with scores, one of them under a name that no page should trust, and with everything probed."""

import json
from pathlib import Path
from typing import Any

import pytest

from polyloom.config import load_recipe
from polyloom.evaluate.saved import store
from polyloom.io.sealed import seal
from polyloom.report.page import make_report
from polyloom.rundir import RunDir
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.tiny_run import LANGUAGES, tiny_recipe

HOSTILE = '<img src=x onerror="alert(1)">'
TASKS = ("mlm", "pos", "ner", "dep")


def short_run(folder: Path, method: str, into: Path, **train) -> Path:
    recipe = tiny_recipe(
        folder, method, tasks=TASKS, train={"steps": 12, "rows_per_batch": 8, "evaluate_every": 6} | train
    )
    train_recipe(load_recipe(recipe), into)
    run = Run.load(into)
    store(run.evaluate(run.recipe.data.test), into, "test")
    return into


def write_probes(run: Path, languages=LANGUAGES, families=("A", "A", None)) -> None:
    (run / "probes").mkdir(exist_ok=True)
    count, checkpoint = len(languages), RunDir(run).best().name
    joins, top = [], 0
    for number in range(1, count):
        joins.append([top if number > 1 else 0, number, float(number), number + 1])
        top = count + number - 1
    found: dict[str, dict[str, Any]] = {
        "languages": {
            "languages": list(languages),
            "families": dict(zip(languages, families, strict=True)),
            "map": {one: [float(i % 7), float(i // 7)] for i, one in enumerate(languages)},
            "neighbours": {one: [[other, 0.5] for other in languages if other != one][:5] for one in languages},
            "linkage": joins,
            "agreement": {
                "purity": 1.0,
                "chance": 0.5,
                "p_value": 0.01,
                "correlation": 0.3,
                "correlation_p_value": 0.2,
            },
        },
        "swap": {
            "task": "pos",
            "metric": "accuracy",
            "languages": list(languages),
            "own": list(languages),
            "donors": list(languages),
            "scores": [[None if i > j else 10.0 * i + j for j in range(count)] for i in range(count)],
        },
        "weights": {
            "conditions": [f"pos/{one}" for one in languages],
            "similarity": [[1.0 if i == j else 0.25 for j in range(count)] for i in range(count)],
            "sites": [{"site": "encoder.0", "between_languages": 0.5, "between_tasks": None, "effective_rank": 1.5}],
        },
        "capacity": {
            "languages": count,
            "conditions": count,
            "embeddings": {"width": 8, "participation_ratio": 1.9, "spectrum": [0.6, 0.4]},
            "read": {"width": 16, "effective_rank": 3.2, "spectrum": [0.9, 0.1]},
            "layers": [{"layer": 1, "units": 32, "dead": 5}],
        },
    }
    for kind, probe in found.items():
        text = json.dumps({"kind": kind, "checkpoint": checkpoint} | probe)
        (run / "probes" / f"{kind}.json").write_text(seal(text))


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="session")
def hyperx(world):
    run = short_run(world, "hyperx", world / HOSTILE)
    write_probes(run)
    return run


@pytest.fixture(scope="session")
def madx(world):
    return short_run(world, "madx", world / "madx")


@pytest.fixture(scope="session")
def page(hyperx, madx):
    """The report of both."""
    return make_report([hyperx, madx], output=Path("report.html"))
