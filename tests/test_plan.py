"""Plans: counts that a real build confirms, and a picture that fits the terminal."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from polyloom.cli.plan_view import number, render
from polyloom.cli.plot import log_plot
from polyloom.config import Recipe, build_backbone, load_recipe, parse_recipe
from polyloom.errors import ConfigError
from polyloom.methods import METHODS, build_method
from polyloom.model import Model
from polyloom.planning import Plan, plan
from polyloom.types import World

ROOT = Path(__file__).parents[1]
BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
M2M: dict[str, Any] = {
    "model_type": "m2m_100",
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
}


def recipe(
    method: str = "hyperx",
    *,
    config: dict[str, Any] = BERT,
    languages: Sequence[str] = ("en", "tr", "yo"),
    directions: Sequence[str] = ("en/*", "*/en"),
    **settings: Any,
) -> Recipe:
    return parse_recipe(
        {
            "backbone": {"config": config},
            "method": {"name": method, **settings},
            "languages": list(languages),
            "tasks": {"mlm": {}, "pos": {"labels": 5}},
            "directions": list(directions),
        }
    )


@pytest.fixture(scope="module", params=[BERT, M2M], ids=["bert", "m2m_100"])
def backbone_config(request: pytest.FixtureRequest) -> dict[str, Any]:
    config: dict[str, Any] = request.param
    return config


@pytest.mark.parametrize("name", METHODS)
def test_counts_are_those_of_a_real_model(name: str, backbone_config: dict[str, Any]) -> None:
    planned = recipe(name, config=backbone_config)
    cost = plan(planned).costs()[name]
    model = Model(
        build_backbone(planned, device="cpu"),
        planned.method,
        languages=planned.languages,
        tasks={"mlm": None, "pos": 5},
        directions=planned.directions,
    )
    assert cost.extra_parameters == sum(p.numel() for p in model.method.parameters())
    assert cost.total_parameters == sum(p.numel() for p in model.parameters())
    trained = set()
    for stage in model.method.stages():
        model.set_stage(stage)
        trained |= {parameter for parameter in model.parameters() if parameter.requires_grad}
    assert cost.trainable_parameters == sum(p.numel() for p in trained)


@pytest.mark.parametrize("directions", [("en/*", "*/en"), ("*/*",), ("en/tr",)], ids="+".join)
@pytest.mark.parametrize("name", METHODS)
def test_growth_is_what_a_rebuild_gives(name: str, directions: tuple[str, ...]) -> None:
    planned = recipe(name, directions=directions)
    made = plan(planned)
    shape = build_backbone(planned, device="meta").shape
    languages = [*planned.languages, *(f"x{index}" for index in range(97))]

    def extra(count: int, **more_tasks: int) -> int:
        world = World.of(languages[:count], {"mlm": None, "pos": 5, **more_tasks}, directions)
        with torch.device("meta"):
            return sum(p.numel() for p in build_method(planned.method, shape=shape, world=world).parameters())

    cost = made.costs()[name]
    assert cost.parameters_per_language == extra(4) - extra(3)
    assert cost.parameters_per_task == extra(3, ner=5) - extra(3)
    assert made.growth(name)["10"] == extra(10)
    assert made.growth(name)["100"] == extra(100)


def test_bytes_and_operations_follow_from_the_shapes() -> None:
    width, layers, size = 16, 2, 4
    block = layers * 2 * width * size
    cost = plan(recipe("hyperx", adapter_size=size)).costs()
    assert cost["hyperx"].bytes_per_condition == 4 * (block + layers * (width + size))
    assert cost["hyperx"].extra_flops_per_token == 2 * block
    assert cost["full"].bytes_per_condition == cost["full"].extra_flops_per_token == 0
    task = layers * 2 * width * 48
    coupling = 2 * 2 * (width // 2) * (width // 4)
    assert cost["madx"].extra_flops_per_token == 2 * (block + task) + 2 * 2 * coupling
    assert cost["psf"].extra_flops_per_token == 2 * 5 * width


def test_a_token_passes_one_of_two_stacks() -> None:
    block = 2 * 16 * 4
    cost = plan(recipe("lang-adapters", config=M2M, adapter_size=4)).costs()["lang-adapters"]
    assert cost.extra_flops_per_token == 2 * 5 * block // 2


def test_alternatives_have_the_adapter_size_of_the_recipe() -> None:
    made = plan(recipe("hyperx", adapter_size=7)).costs()
    assert {made[name].settings["adapter_size"] for name in made if "adapter_size" in made[name].settings} == {7}
    assert plan(recipe("full")).costs()["madx"].settings["adapter_size"] == 256


def test_a_method_that_does_not_apply_has_nulls_and_a_reason() -> None:
    planned = recipe("lang-adapters", config=M2M)
    made = plan(replace(planned, tasks={"mlm": planned.tasks["mlm"]})).to_dict()["methods"]["psf"]
    assert made["extra_parameters"] is None
    assert "psf generates classifiers" in made["reason"]


def test_a_chosen_method_that_serves_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="badx"):
        plan(recipe("badx", languages=["en"], directions=["en/*"]))


def test_language_and_task_names_of_any_form_are_planned() -> None:
    made = plan(recipe("madx", languages=["further", "further_x", "further_x_x_0"], directions=[]))
    assert made.languages == 3


def shown(made: Plan, width: int) -> str:
    out = StringIO()
    render(made, Console(file=out, width=width, highlight=False, markup=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["hyper-adapters/ml50-big", "madx/mbert", "full/mbert"])
def test_what_people_see_fits_and_is_complete(name: str, width: int) -> None:
    made = plan(load_recipe(ROOT / f"recipes/{name}.yaml"))
    text = shown(made, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert "\x1b" not in text
    rows = [line for line in lines if line.startswith(("●", "  "))]
    assert f"● {made.chosen} " in rows[2]
    for method in made.costs():
        assert any(row[2:].startswith(f"{method} ") for row in rows)
    assert "10,000" in text
    assert "Stage 1" in text


def test_the_verdict_says_from_where_on_it_pays() -> None:
    made = plan(load_recipe(ROOT / "recipes/hyper-adapters/ml50-base.yaml"))
    text = " ".join(shown(made, 120).split())
    assert "From 53 languages on, hyper-adapters is smaller than lang-adapters." in text
    chosen, rival = made.costs()["hyper-adapters"], made.costs()["lang-adapters"]
    assert chosen.extra_with(53 - 51) < rival.extra_with(53 - 51)
    assert chosen.extra_with(52 - 51) >= rival.extra_with(52 - 51)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (50, "50"), (999, "999"), (1000, "1.00k"), (999_999, "1.00M"), (82_965_802, "83.0M"), (3.2e10, "32.0B")],
)
def test_numbers_have_three_digits(value: Any, text: str) -> None:
    assert number(value) == text


@given(st.integers(0, 10**14))
def test_numbers_are_short(value: Any) -> None:
    assert len(number(value)) <= 5 or value >= 9.995e14


def test_lines_that_coincide_are_both_seen() -> None:
    rows = log_plot(
        {"●": lambda x: 100 * x, "A": lambda x: x, "B": lambda x: x},
        [(1, "1"), (100, "100")],
        width=50,
        height=9,
        label=str,
        solid="●",
    )
    text = "\n".join(rows)
    assert text.count("A") > 5
    assert text.count("B") > 5
    assert text.count("●") == 40
    assert len({len(row) <= 50 for row in rows}) == 1
