"""The papers' parameter counts, through the real command: no weights, no network, under ten seconds."""

import json
import os
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# The command, in a process where any attempt to connect is an error.
OFFLINE = """
import socket, sys
def refuse(*args): raise AssertionError(f"a connection was attempted: {args}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
sys.argv[0] = "polyloom"
from polyloom.cli import main
main()
"""
BASE, BIG = "hyper-adapters/ml50-base", "hyper-adapters/ml50-big"
SECONDS = 10


@cache
def plan(recipe: str, *overrides: str) -> tuple[dict[str, Any], float]:
    printed, seconds = python(OFFLINE, "plan", f"recipes/{recipe}.yaml", *overrides, "--json")
    return json.loads(printed), seconds


def python(*code: str) -> tuple[str, float]:
    """What a program prints, and its CPU time: of one thread, what the clock shows on a quiet machine."""
    before = _seconds_of_children()
    done = subprocess.run(
        [sys.executable, "-c", *code],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, _seconds_of_children() - before


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_millions(count: int, digits: int = 0) -> float:
    return round(count / 1e6, digits)


@pytest.mark.parametrize(("recipe", "millions"), [(BASE, 90), (BIG, 269)])
def test_backbones_have_the_papers_size(recipe: str, millions: int) -> None:
    made, _ = plan(recipe)
    assert in_millions(made["backbone"]["parameters"]) == millions


@pytest.mark.parametrize(
    ("recipe", "method", "millions"),
    [
        (BASE, "lang-adapters", 81),
        (BASE, "pair-adapters", 159),
        (BIG, "lang-adapters", 323),
        (BIG, "pair-adapters", 633),
        ("hyperx/mbert-small", "hyperx", 13),
        ("hyperx/mbert-base", "hyperx", 76),
    ],
)
def test_methods_add_what_the_paper_says(recipe: str, method: str, millions: int) -> None:
    made, _ = plan(recipe)
    assert in_millions(made["methods"][method]["extra_parameters"]) == millions


@pytest.mark.parametrize(
    ("recipe", "hidden_size", "millions"),
    [(BASE, 102, 14), (BASE, 204, 27), (BASE, 612, 83), (BIG, 102, 54), (BIG, 204, 108), (BIG, 612, 325)],
)
def test_hyper_adapters_add_what_the_paper_says(recipe: str, hidden_size: int, millions: int) -> None:
    made, _ = plan(recipe, f"method.hidden_size={hidden_size}")
    assert in_millions(made["methods"]["hyper-adapters"]["extra_parameters"]) == millions


def test_madx_adds_what_the_paper_says() -> None:
    made, _ = plan("madx/mbert")
    madx = made["methods"]["madx"]
    assert in_millions(madx["parameters_per_language"], 1) == 4.7
    assert in_millions(madx["parameters_per_task"], 1) == 0.9
    assert in_millions(16 * madx["parameters_per_language"]) == 76  # the total that the Hyper-X paper gives


@pytest.mark.parametrize("method", ["lang-adapters", "pair-adapters", "dense"])
def test_baselines_as_recipes_agree_with_the_alternatives(method: str) -> None:
    chosen, _ = plan(f"{BASE}-{method}")
    alternative, _ = plan(BASE)
    assert chosen["chosen"] == method
    assert chosen["methods"][method] == alternative["methods"][method]
    assert (chosen["languages"], chosen["directions"]) == (51, 100)


RECIPES = sorted(str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in ROOT.glob("recipes/*/*.yaml"))


@pytest.mark.timing
@pytest.mark.parametrize(  # of the mini recipes, which share one small backbone, two stand for all
    "recipe", [name for name in RECIPES if not name.startswith("mini/") or name in ("mini/hyperx", "mini/psf")]
)
def test_every_recipe_is_planned_in_time_with_every_alternative(recipe: str) -> None:
    made, seconds = plan(recipe)
    # Importing the libraries is nearly all of it. Where a machine is so slow that ten seconds go by: half at least.
    assert seconds < SECONDS or seconds < 2 * python("import torch, transformers.modeling_utils")[1]
    assert next(iter(made["methods"])) == made["chosen"]
    assert len(made["methods"]) == 10
    for cost in made["methods"].values():
        assert (cost["extra_parameters"] is None) == (cost["reason"] is not None)
