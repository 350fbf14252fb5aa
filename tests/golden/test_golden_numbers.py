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

from polyloom.recipes import shipped_recipes
from tests.shared import polyloom

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


def refuse(*arguments: object) -> None:
    raise AssertionError(f"a connection was attempted: {arguments}")


@cache
def plan(recipe: str, *overrides: str) -> dict[str, Any]:
    """What the command prints, in this process."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("socket.socket.connect", "socket.socket.connect_ex", "socket.getaddrinfo"):
            patched.setattr(name, refuse)
        made: dict[str, Any] = json.loads(polyloom("plan", recipe, *overrides, "--json"))
    return made


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
    made = plan(recipe)
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
    made = plan(recipe)
    assert in_millions(made["methods"][method]["extra_parameters"]) == millions


@pytest.mark.parametrize(
    ("recipe", "hidden_size", "millions"),
    [(BASE, 102, 14), (BASE, 204, 27), (BASE, 612, 83), (BIG, 102, 54), (BIG, 204, 108), (BIG, 612, 325)],
)
def test_hyper_adapters_add_what_the_paper_says(recipe: str, hidden_size: int, millions: int) -> None:
    made = plan(recipe, f"method.hidden_size={hidden_size}")
    assert in_millions(made["methods"]["hyper-adapters"]["extra_parameters"]) == millions


def test_madx_adds_what_the_paper_says() -> None:
    made = plan("madx/mbert")
    madx = made["methods"]["madx"]
    assert in_millions(madx["parameters_per_language"], 1) == 4.7
    assert in_millions(madx["parameters_per_task"], 1) == 0.9
    assert in_millions(16 * madx["parameters_per_language"]) == 76  # the total that the Hyper-X paper gives


@pytest.mark.parametrize("method", ["lang-adapters", "pair-adapters", "dense"])
def test_baselines_as_recipes_agree_with_the_alternatives(method: str) -> None:
    chosen = plan(f"{BASE}-{method}")
    alternative = plan(BASE)
    assert chosen["chosen"] == method
    papers, ours = chosen["methods"][method], alternative["methods"][method]
    if method != "dense":  # the paper's initialisation; by default adapters begin as identity
        assert (papers["settings"]["init"], ours["settings"]["init"]) == ("xavier", "identity")
        ours = ours | {"settings": ours["settings"] | {"init": "xavier"}}
    assert papers == ours
    assert (chosen["languages"], chosen["directions"]) == (51, 100)


SOME = (BASE, "hyper-adapters/nllb-200", "mini/psf")  # a translator, the most languages, an encoder
# Every recipe is planned in CI, its alternatives are not: tests/recipes/test_paper_recipes.py.
RECIPES = [pytest.param(name, marks=() if name in SOME else pytest.mark.nightly) for name in sorted(shipped_recipes())]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_planned_with_every_alternative(recipe: str) -> None:
    made = plan(recipe)
    assert next(iter(made["methods"])) == made["chosen"]
    assert len(made["methods"]) == 11
    for cost in made["methods"].values():
        assert (cost["extra_parameters"] is None) == (cost["reason"] is not None)


def test_the_command_plans_without_a_network() -> None:
    printed, _ = python(OFFLINE, "plan", BASE, "--json")
    assert json.loads(printed) == plan(BASE)


@pytest.mark.timing
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_planned_in_time(recipe: str) -> None:
    printed, seconds = python(OFFLINE, "plan", recipe, "--json")
    # Importing the libraries is nearly all of it. Where a machine is so slow that ten seconds go by: half at least.
    assert seconds < SECONDS or seconds < 2 * python("import torch, transformers.modeling_utils")[1]
    assert json.loads(printed) == plan(recipe)
