"""Plans: counts that a real build confirms, and a picture that fits the terminal."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from polyloom.backbones import backbone_from_config
from polyloom.cli import app
from polyloom.cli.render.plan import number, render, render_run
from polyloom.conditions import Inventory
from polyloom.config import Recipe, load_recipe, parse_recipe
from polyloom.config.build import empty_backbone
from polyloom.data.mixture import Mixture
from polyloom.errors import ConfigError, DataError
from polyloom.io.yaml import parse_yaml
from polyloom.methods import METHODS, build_method
from polyloom.model import Model
from polyloom.recipes import find_file
from polyloom.workflows.planning import Plan, Size, plan, plan_run, read_sizes
from polyloom.workflows.planning.schedule import example_flops
from tests.data.in_memory import InMemory
from tests.shared import polyloom

ROOT = Path(__file__).parents[2]
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
    backbone = backbone_from_config(backbone_config)
    inventory = Inventory.of(planned.languages, {"mlm": None, "pos": 5}, planned.directions)
    model = Model(backbone, build_method(planned.method, shape=backbone.shape, inventory=inventory), tasks=["mlm"])
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
    shape = empty_backbone(planned.backbone).shape
    languages = [*planned.languages, *(f"x{index}" for index in range(97))]

    def extra(count: int, **more_tasks: int) -> int:
        world = Inventory.of(languages[:count], {"mlm": None, "pos": 5, **more_tasks}, directions)
        with torch.device("meta"):
            return sum(p.numel() for p in build_method(planned.method, shape=shape, inventory=world).parameters())

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
    made = plan(load_recipe(name))
    text = shown(made, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text
    assert "\x1b" not in text
    rows = [line for line in lines if line.startswith(("●", "  "))]
    assert f"● {made.chosen} " in rows[2]
    for method in made.costs():
        assert any(row[2:].startswith(f"{method} ") for row in rows)
    assert "Stage 1" in text


def test_the_verdict_says_from_where_on_it_pays() -> None:
    made = plan(load_recipe("hyper-adapters/ml50-base"))
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


def translation(*overrides: str, kind: str = "hyper-adapters") -> Recipe:
    settings: dict[str, Any] = {
        "backbone": {"config": M2M | {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}},
        "method": {"name": kind, **({"adapter_size": 4} if kind != "dense" else {})},
        "languages": ["en", "de", "gu"],
        "tasks": {"mt": {}},
        "directions": ["en/*", "*/en"],
        "mixture": {"temperature": 2.0},
        "train": {"steps": 1000, "tokens_per_batch": 4000},
    }
    for override in overrides:
        place, _, value = override.partition("=")
        *path, last = place.split(".")
        section = settings[path[0]] if path else settings
        section[last] = parse_yaml(f"it: {value}", source="test")["it"]
    return parse_recipe(settings)


SIZES = {frozenset(("en", "de")): Size(1_000_000, 30.0), frozenset(("en", "gu")): Size(2_000, 30.0)}


def test_a_run_is_planned_by_the_arithmetic_of_its_mixture() -> None:
    steps = 5 * 2**12 // 2  # five rounds of a small mixture, in which shares are exact
    settings = translation("mixture.datasets_per_batch=2", f"train.steps={steps}", kind="dense")
    made = plan(settings)
    run = plan_run(settings, made, sizes=SIZES, flops_per_second=1e12)
    lot = np.random.default_rng(0)
    lengths = {
        d.direction: np.minimum(2 + np.rint(lot.gamma(3, 28 / 3, d.pairs)), 252).astype(np.int32).clip(3)
        for d in run.directions
    }
    mixture = Mixture(
        {name: InMemory(held, 500) for name, held in lengths.items()}, settings.mixture, seed=0, tokens_per_batch=4000
    )
    for found, share, epochs in zip(
        run.directions, mixture.shares().values(), mixture.epochs(steps).values(), strict=True
    ):
        assert found.share == pytest.approx(share, rel=0.05)
        assert found.epochs == pytest.approx(epochs, rel=0.05)
    assert sum(d.share for d in run.directions) == pytest.approx(1)
    assert sum(d.share * d.rows_per_draw for d in run.directions) * 2 * steps * 30 == pytest.approx(run.tokens)
    assert 0.8 * steps * 4000 < run.tokens < steps * 4000, "full batches but for padding"
    assert run.hours == pytest.approx(run.flops / 1e12 / 3600)
    assert run.order_bytes == 200 * 2 * (1801 + 4), "a count of blocks of 128 KB"
    assert run.model_bytes == 16 * made.costs()["dense"].total_parameters
    assert run.dataset_bytes == 2 * 1_002_000 * (12 + 8 * 28)


def test_operations_are_those_that_torch_counts() -> None:
    settings = translation(kind="dense")
    backbone, length = backbone_from_config(settings.backbone.model_config or {}), 10
    backbone.model.set_attn_implementation("eager")
    ids = torch.full((1, length), 7)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        backbone.model(input_ids=ids, decoder_input_ids=ids)
    assert example_flops(backbone, length) == counter.get_total_flops()
    made = plan(settings)
    run = plan_run(settings, made, sizes=SIZES)
    assert run.flops == pytest.approx(run.tokens / 30 * 3 * example_flops(backbone, 30))
    with_adapters = translation(kind="lang-adapters")
    costs = plan(with_adapters)
    more = plan_run(with_adapters, costs, sizes=SIZES).flops - run.flops
    assert more == pytest.approx(3 * 2 * run.tokens * costs.costs()["lang-adapters"].extra_flops_per_token)


def test_too_many_passes_and_thin_batches_are_seen() -> None:
    settings = translation("train.tokens_per_batch=64000", "train.steps=20000")
    run = plan_run(settings, plan(settings), sizes=SIZES)
    assert {d.direction for d in run.repeated()} == {d.direction for d in run.thin()} == {"en/gu", "gu/en"}
    gentle = translation("mixture={strategy: unimax, max_repeats: 3, datasets_per_batch: 8}", "train.steps=100")
    run = plan_run(gentle, plan(gentle), sizes=SIZES)
    assert not run.repeated()
    assert max(d.epochs for d in run.directions) <= 3 + 1e-9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.steps=null", "train.steps: missing"),
        ("train.tokens_per_batch=null", "train.tokens_per_batch: missing"),
        ("languages=[en, de, gu, fr]", "nothing for en/fr and 1 more"),
        ("mixture={strategy: round-robin}", "no run of round-robin"),
    ],
)
def test_what_a_run_cannot_be_planned_without_is_said(override: str, message: str) -> None:
    settings = translation(override)
    with pytest.raises(ConfigError, match=message):
        plan_run(settings, plan(settings), sizes=SIZES)


def test_tables_of_sizes_are_read_or_refused(tmp_path: Path) -> None:
    table = tmp_path / "sizes.tsv"
    table.write_text("# a note\nen/de\t1_000_000\t30\n\nen/gu\t2000\t30.0\n")
    assert read_sizes(table) == SIZES
    for wrong in ("en/de\t5", "en/en\t5\t30", "en/de\t0\t30", "en/de\t5\tnan", "en/de\tmany\t30", "de/en\t5\t30"):
        table.write_text(f"en/de\t5\t30\n{wrong}\n" if wrong.startswith("de") else f"{wrong}\n")
        with pytest.raises(DataError, match=r"sizes\.tsv"):
            read_sizes(table)


@pytest.mark.parametrize(
    ("name", "pairs", "directions"),
    [("ml50-base", "ml50", 100), ("ml50-big", "ml50", 100), ("nllb-200", "nllb-200", 402)],
)
def test_large_runs_can_be_planned_and_read(name: str, pairs: str, directions: int) -> None:
    settings = load_recipe(f"hyper-adapters/{name}", ["train.steps=100000"])
    sizes = read_sizes(find_file(f"hyper-adapters/{pairs}.tsv"))
    run = plan_run(settings, plan(settings), sizes=sizes, flops_per_second=1e14)
    assert len(run.directions) == directions
    assert sum(size.pairs for size in sizes.values()) == pytest.approx({"ml50": 230e6}.get(pairs, 133e6), rel=0.005)
    assert run.tokens < 100_000 * 256_000
    for width in (80, 120):
        out = StringIO()
        render_run(run, Console(file=out, width=width, highlight=False, markup=False))
        assert max(map(len, out.getvalue().splitlines())) <= width
    shares = [float(share) for share in re.findall(r"([\d.]+) % ", out.getvalue().partition("Tokens")[0])]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert json.loads(json.dumps(run.to_dict()))["steps"] == 100_000


def test_the_command_plans_a_run_where_it_is_told_the_pairs() -> None:
    recipe = find_file("hyper-adapters/nllb-200.yaml")
    found = json.loads(polyloom("plan", recipe, "--pairs", recipe.with_suffix(".tsv"), "--tflops", "50", "--json"))
    assert found["chosen"] == "hyper-adapters"
    assert found["run"]["hours"] == pytest.approx(found["run"]["flops"] / 50e12 / 3600)
    refused = CliRunner().invoke(app, ["plan", str(recipe), "--tflops", "50"])
    assert refused.exit_code == 2
    assert "--pairs is missing" in refused.stderr
