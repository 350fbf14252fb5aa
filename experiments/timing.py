"""Measure how long a step of every method of a study takes, in turn, on an idle machine."""

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from experiments.read import MissingError
from experiments.storage import RESULTS, read_result, write_result
from experiments.studies import lm, translation
from experiments.study import Settings

MAP, LM = "map-seconds.json", "lm-seconds.json"


def measure_map(materials: Path, results: Path = RESULTS) -> None:
    """Take steps of the methods of every cell of the map in turn, and write the seconds of each."""
    cells: dict[str, Settings] = {}
    for name, recipe in translation.cells(materials):
        method, _, cell = name.partition("-")
        if cell.endswith(f"-s{translation.STEPS}"):
            cells.setdefault(cell, {})[method] = recipe
    seconds = {cell: _seconds(recipes, warmup=5, rounds=25) for cell, recipes in cells.items()}
    write_result(results / MAP, seconds)


def measure_lm(materials: Path, results: Path = RESULTS) -> None:
    """Take steps of the three kinds of LoRA of a language model in turn, and write the seconds of each."""
    recipes = {name: recipe for name, recipe in lm.rows(materials) if name in lm.METHODS}
    write_result(results / LM, _seconds(recipes, warmup=2, rounds=10))


def _seconds(recipes: Settings, *, warmup: int, rounds: int) -> dict[str, list[float]]:
    """Take steps of all recipes in turn; return the seconds of each."""
    steps = {name: _steps(recipe) for name, recipe in recipes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number, (name, taken) in product(range(warmup + rounds), steps.items()):
        start = time.perf_counter()
        next(taken)
        if number >= warmup:
            seconds[name].append(round(time.perf_counter() - start, 5))
    return seconds


def _steps(recipe: Settings) -> Iterator[object]:
    """Return the steps of training, one at a time."""
    from polyloom.config import parse_recipe  # noqa: PLC0415 - slow imports
    from polyloom.training.distributed import ProcessGroup  # noqa: PLC0415
    from polyloom.training.loop import TrainLoop  # noqa: PLC0415
    from polyloom.workflows.train import prepare_training  # noqa: PLC0415

    setup = prepare_training(parse_recipe(recipe, source="experiments"))
    (plan,) = setup.plans
    return TrainLoop(setup.model, plan, tokenizer=setup.tokenizer, process_group=ProcessGroup()).steps()


def against_dense(method: str, cell: str) -> str:
    """Format how long a step takes, in steps of the dense model: the median over rounds.

    Raises:
        MissingError: It has not been measured.
    """
    found = _read(MAP, cell)
    ratios = [one / dense for one, dense in zip(found[method], found["dense"], strict=True)]
    return f"{median(ratios):.2f}"


def minutes_of(method: str) -> str:
    """Format how many minutes a run of the study of language models takes on one core: its steps at their median.

    Raises:
        MissingError: It has not been measured.
    """
    return f"{median(_read(LM, method)) * lm.STEPS / 60:.1f}"


def _read(file: str, key: str) -> Any:
    found = read_result(RESULTS / file).get(key)
    if found is None:
        raise MissingError(f"seconds of {key}")
    return found
