"""Measure how long a step of every method of the map takes, in turn, on an idle machine."""

import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

from experiments.read import MissingError
from experiments.storage import RESULTS, read_result, write_result
from experiments.studies import translation
from experiments.study import Settings

FILE = "map-seconds.json"
WARMUP, ROUNDS = 5, 25  # steps


def measure(materials: Path, results: Path = RESULTS) -> None:
    """Take steps of every cell's methods in turn, and write the seconds of each."""
    cells: dict[str, Settings] = {}
    for name, recipe in translation.cells(materials):
        method, _, cell = name.partition("-")
        if cell.endswith(f"-s{translation.STEPS}"):
            cells.setdefault(cell, {})[method] = recipe
    write_result(results / FILE, {cell: _seconds(recipes) for cell, recipes in cells.items()})


def _seconds(recipes: Settings) -> dict[str, list[float]]:
    """Take steps of all recipes in turn; return the seconds of each."""
    steps = {name: _steps(recipe) for name, recipe in recipes.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number, (name, taken) in product(range(WARMUP + ROUNDS), steps.items()):
        start = time.perf_counter()
        next(taken)
        if number >= WARMUP:
            seconds[name].append(round(time.perf_counter() - start, 5))
    return seconds


def _steps(recipe: Settings) -> Iterator[object]:
    """Return the steps of training, one at a time."""
    from polyloom.config import parse_recipe  # noqa: PLC0415 - slow imports
    from polyloom.training.distributed import ProcessGroup  # noqa: PLC0415
    from polyloom.training.loop import TrainLoop  # noqa: PLC0415
    from polyloom.workflows.train import prepare_training  # noqa: PLC0415

    setup = prepare_training(parse_recipe(recipe, source="map"))
    (plan,) = setup.plans()
    return TrainLoop(setup.model, plan, tokenizer=setup.tokenizer, process_group=ProcessGroup()).steps()


def against_dense(method: str, cell: str) -> str:
    """Format how long a step takes, in steps of the dense model: the median over rounds.

    Raises:
        MissingError: It has not been measured.
    """
    found = read_result(RESULTS / FILE).get(cell)
    if found is None:
        raise MissingError(f"seconds of {cell}")
    ratios = [one / dense for one, dense in zip(found[method], found["dense"], strict=True)]
    return f"{median(ratios):.2f}"
