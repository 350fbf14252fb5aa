"""Recipes named after papers: every number has a source, the papers' sizes hold, each one trains on data of its shape.

Data are made up and the backbone is tiny, of the same family. Steps, sizes and the lengths of slices are smaller;
everything else is as in the recipe. CI trains one recipe of each shape, the nightly run trains them all.
"""

import itertools
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import polyloom
from polyloom.config import Recipe, load_recipe
from polyloom.data.mixture import Mixture
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import PolyloomError
from polyloom.recipes import RECIPES, find_file, shipped_recipes
from polyloom.training.events import Event, IssueFound, StageStarted, StepTaken, Validated
from polyloom.workflows.planning import Cost, plan, plan_run, read_sizes
from tests.data.in_memory import InMemory
from tests.recipes.made_up import place, write_data, write_encoder, write_vocabulary
from tests.shared import polyloom as run_command

PAPERS = {"badx", "full", "hyper-adapters", "hyper-stack", "hyperx", "madx", "psf"}
NAMES = [name for name in shipped_recipes() if name.partition("/")[0] in PAPERS]
PLAN_ONLY = "hyper-adapters/nllb-200"  # its data cannot be had
ML50 = [name for name in NAMES if "/ml50" in name]
SOURCE = re.compile(r"#.*(Table \d|Tables \d|§\d|Appendix [A-D]|B\.\d|Figure \d|footnote \d|ours|config\.json)")
NIGHTLY = pytest.mark.nightly


@pytest.fixture
def own_methods_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan the methods of recipes alone: counting every alternative takes most of the time."""
    monkeypatch.setattr("polyloom.workflows.planning.costs.METHODS", {})


@cache
def recipe_of(name: str) -> Recipe:
    return load_recipe(name)


def cost_of(recipe: Recipe) -> Cost:
    return plan(recipe).costs()[recipe.method.name]


@pytest.mark.usefixtures("own_methods_only")
def test_every_shipped_recipe_is_valid_and_can_be_planned() -> None:
    wrong = []
    for name in shipped_recipes():
        try:
            cost_of(recipe_of(name))
        except PolyloomError as error:
            wrong.append(f"{name}: {error}")
    assert len(shipped_recipes()) > 50
    assert not wrong, "\n".join(wrong)


def numbers(text: str) -> list[tuple[int, str]]:
    """The lines of a recipe that have a number as a value, or in a slice of a corpus."""
    lines = text.splitlines()
    found = {}
    for token in yaml.scan(text):
        value = getattr(token, "value", None)
        if isinstance(token, yaml.ScalarToken) and isinstance(value, str):
            slices = re.search(r"\[[^\]]*\d[^\]]*\]$", value)
            if slices or re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", value):
                line = token.start_mark.line
                found[line + 1] = lines[line]
    return list(found.items())


def test_every_number_says_where_it_is_from() -> None:
    wrong = []
    for name in NAMES:
        lines = numbers((RECIPES / f"{name}.yaml").read_text())
        assert lines, name
        wrong += [f"{name}.yaml:{number}: {line}" for number, line in lines if not SOURCE.search(line)]
    assert not wrong, "\n".join(wrong)


def test_numbers_without_a_source_are_found() -> None:
    text = "train:\n  steps: 5\n  lr: 1e-4 # §4\n  name: d2 # 5\n  a: x.txt[<=10]\n  b: {c: 0.5} # ours\nlist: [1, 2]\n"
    assert [number for number, line in numbers(text) if not SOURCE.search(line)] == [2, 5, 7]
    assert len(numbers(text)) == 5


# -- what the papers say ----------------------------------------------------------------------------------------------

SEEN_IN_A = {  # superscripts of Table 6
    "ner": {"en", "br", "kk", "tr", "yo", "zh", "gn", "sa", "yue"},
    "pos": {"en", "ar", "is", "ta", "hsb", "fo", "mt", "ug"},
}
SIXTEEN = {"en", "ar", "br", "zh", "is", "kk", "ta", "tr", "yo", "fo", "gn", "hsb", "mt", "sa", "ug", "yue"}
NO_TRAIN = {"br", "is", "yo", "fo", "gn", "hsb", "sa", "yue"}  # Table 4


def cells(conditions: Mapping[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in conditions:
        task, _, language = name.partition("/")
        found.setdefault(task, set()).add(language)
    return found


@pytest.mark.parametrize("method", ["hyperx/mbert-base", "full/mbert", "madx/mbert", "psf/mbert"])
def test_partitions_are_those_of_table_6(method: str) -> None:
    first, second = (recipe_of(f"{method}-mixed-{part}") for part in "ab")
    assert set(first.languages) == set(second.languages) == SIXTEEN
    for task, languages in SEEN_IN_A.items():
        assert cells(first.data.train)[task] == languages
        assert cells(second.data.train)[task] == (SIXTEEN - languages) | {"en"}
        for recipe in (first, second):
            trained, tested = cells(recipe.data.train)[task], cells(recipe.data.test)[task]
            assert tested == (SIXTEEN - trained) | {"en"}, "zero-shot, and English"
    tagged = first.data.train | second.data.train
    for language in SIXTEEN:
        assert tagged[f"pos/{language}"][0].endswith("/test" if language in NO_TRAIN else "/train")
    assert ("mlm/yue" in first.data.train) == (method in ("hyperx/mbert-base", "madx/mbert"))


@pytest.mark.parametrize("method", ["hyperx/mbert-base", "full/mbert"])
def test_switched_partitions_move_three_languages_to_relatives(method: str) -> None:
    for part in "ab":
        before, after = (cells(recipe_of(f"{method}-{kind}-{part}").data.train) for kind in ("mixed", "switched"))
        for task in ("pos", "ner"):
            assert before[task] ^ after[task] == {"kk", "mt", "yue"}


def test_steps_of_the_baselines_are_those_of_each_language() -> None:
    madx = recipe_of("madx/mbert")
    assert madx.stage("languages").train.steps == 16 * 100_000
    assert (madx.stage("tasks").train.epochs, madx.stage("tasks").optim.lr) == (20, 1e-4)
    full = recipe_of("full/mbert")
    assert (full.train.epochs, full.optim.lr, full.train.rows_per_batch, full.train.max_length) == (20, 1e-5, 32, 256)
    badx = recipe_of("badx/mbert-ud")
    assert badx.stage("languages").train.steps == 50_000 * len(badx.inventory().directions)
    assert badx.stage("tasks").train.steps == 2 * 15_000 * len(badx.inventory().directions)
    assert recipe_of("badx/mbert-ud-madx").stage("languages").train.steps == 25_000 * 11
    assert recipe_of("badx/mbert-nli-multilingual").stage("languages").train.steps == 50_000
    assert {name for name in badx.data.validation if name.startswith("mlm/")} == {
        f"mlm/{language}" for language in badx.languages if language != "en"
    }, "selection by the perplexity of the target"


def test_ml50_has_the_papers_languages_and_groups() -> None:
    sizes = read_sizes(find_file("hyper-adapters/ml50.tsv"))
    languages = set().union(*sizes) - {"en"}
    for name in ML50:
        recipe = recipe_of(name)
        assert set(recipe.languages) == languages | {"en"}
        assert recipe.data.train.keys() == {f"mt/{direction}" for direction in recipe.inventory().directions}
        assert len(recipe.data.train) == 100
    assert "iu" in languages
    assert "sw" not in languages
    pairs = {next(iter(pair - {"en"})): size.pairs for pair, size in sizes.items()}
    groups = [sum(low <= count < high for count in pairs.values()) for low, high in ((1e6, 1e9), (1e5, 1e6), (0, 1e5))]
    assert groups == [14, 17, 19]
    assert sum(pairs.values()) == pytest.approx(230e6, rel=1e-5)
    assert (pairs["fr"], pairs["iu"], pairs["uk"]) == (38_507_539, 1_109_076, 104_021)  # Table 7


def test_the_vocabulary_of_the_first_line_fits_the_model() -> None:
    """`--size` counts the special tokens; a token of each language is added to it."""
    wrong = []
    for name in [name for name in NAMES if "/ml" in name]:
        recipe = recipe_of(name)
        command = re.search(
            r"data vocab (\S+) -o (\S+) --size (\d+) --coverage 0.99995 --temperature 5",
            (RECIPES / f"{name}.yaml").read_text(),
        )
        if command is None:
            wrong.append(f"{name}: no command")
            continue
        corpora, into, size = command.groups()
        if recipe.backbone.tokenizer != into:
            wrong.append(f"{name}: {into}, but the tokenizer is {recipe.backbone.tokenizer}")
        if (recipe.backbone.config or {})["vocab_size"] != int(size) + len(recipe.languages):
            wrong.append(f"{name}: --size {size} does not fit vocab_size")
        if set(recipe_of(corpora).languages) != set(recipe.languages):
            wrong.append(f"{name}: {corpora} has other languages")
    assert not wrong, "\n".join(wrong)


def test_the_vocabulary_command_makes_such_a_vocabulary(tmp_path: Path) -> None:
    write_data(recipe_of("hyper-adapters/ml15"), tmp_path / "data")
    into = tmp_path / "vocabulary"
    run_command("data", "vocab", "hyper-adapters/ml15", "-o", into, "--size", 60, "--root", tmp_path / "data")
    assert load_tokenizer(into).vocab_size == 60 + 15


def test_ml15_and_its_artificial_version_have_the_splits_of_table_7() -> None:
    whole, artificial = (recipe_of(f"hyper-adapters/{name}") for name in ("ml15", "ml15-artificial"))
    assert len(whole.languages) == 15
    assert len(artificial.languages) == 48
    sizes = read_sizes(find_file("hyper-adapters/ml50.tsv"))
    for language in whole.languages[1:]:
        parts = [name for name in artificial.languages if name.partition("-")[0] == language]
        slices = [artificial.data.train[f"mt/en/{part}"][0].rpartition("[")[2] for part in parts]
        if len(parts) == 1:
            assert slices == [f"ml50/en-{language}/train.tsv#en,{language}-1"]
            continue
        bounds = [tuple(map(int, part.rstrip("]").split(":"))) for part in slices]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == sizes[frozenset(("en", language))].pairs
        assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))


@pytest.mark.usefixtures("own_methods_only")
def test_models_of_tables_1_2_and_4_have_the_papers_parameters() -> None:
    artificial = load_recipe("hyper-adapters/ml15-artificial", {"method": {"name": "lang-adapters"}})
    pairs = load_recipe("hyper-adapters/ml15-artificial", {"method": {"name": "pair-adapters"}})
    counted = {"ml15-artificial with language adapters": artificial, "ml15-artificial with pair adapters": pairs}
    millions = {
        "ml50-base": 173, "ml50-base-lang-adapters": 171, "ml50-base-pair-adapters": 250, "ml50-base-dense": 90,
        "ml50-big": 594, "ml50-big-lang-adapters": 591, "ml50-big-pair-adapters": 902, "ml50-big-dense": 269,
        "ml50-173m-dense": 173, "ml15": 114, "ml15-lang-adapters": 114, "ml15-pair-adapters": 135,
        "ml15-artificial": 114, **dict(zip(counted, (167, 240), strict=True)),
    }  # fmt: skip
    wrong = []
    for name, expected in millions.items():
        total = cost_of(counted.get(name) or recipe_of(f"hyper-adapters/{name}")).total_parameters / 1e6
        if abs(total - expected) > 1:
            wrong.append(f"{name}: {total:.1f} million, not {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["ml50-base", pytest.param("ml50-big-dense", marks=NIGHTLY)])
def test_a_step_draws_32_directions_of_8000_tokens(name: str) -> None:
    recipe = recipe_of(f"hyper-adapters/{name}")
    sizes = read_sizes(find_file("hyper-adapters/ml50.tsv"))
    lot = np.random.default_rng(0)
    lengths = {
        direction: (2 + lot.integers(1, 60, max(20, sizes[frozenset(direction.split("/"))].pairs // 10_000)))
        for direction in recipe.inventory().directions
    }
    mixture = Mixture(
        {direction: InMemory(values, 500) for direction, values in lengths.items()},
        recipe.mixture, seed=0, tokens_per_batch=recipe.train.tokens_per_batch,
    )  # fmt: skip
    kinds = []
    for step in range(20):
        draws = [list(mixture._draw(step * 32 + draw)) for draw in range(32)]
        assert [pick for draw in draws for pick in draw] == mixture.batch(step)
        for draw in draws:
            longest = max(int(lengths[pick.dataset][pick.index]) for pick in draw)
            assert len({pick.dataset for pick in draw}) == 1
            assert longest * len(draw) <= 8000
        kinds.append(len({pick.dataset for pick in mixture.batch(step)}))
    assert np.mean(kinds) > 15, "each of 32 draws is of its own direction; large ones may come twice"
    made = plan_run(recipe, plan(recipe), sizes=sizes)
    largest, smallest = (next(d for d in made.directions if d.direction == f"en/{code}") for code in ("cs", "bn"))
    assert 100 < largest.rows_per_draw < 8000 / 10, "a draw has 8,000 tokens, not 256,000"
    assert smallest.epochs / largest.epochs == pytest.approx((largest.pairs / smallest.pairs) ** 0.5, rel=1e-6)


def test_the_variants_of_the_comments_are_accepted() -> None:
    variants: list[tuple[str, list[str]]] = [
        ("hyperx/mbert-base-mixed-a", ["method.projection_size=32", "mixture.temperature=1", "data.train.mlm/*=null"]),
        ("hyperx/mbert-base-mixed-b", ["data.train.mlm/tr=null"]),
        (
            "madx/xlmr-base",
            [
                "data.train={ner/ja: wikiann:ja/train, mlm/*: wikipedia/*.txt}",
                "data.validation={ner/ja: wikiann:ja/dev}",
                "method.invertible=false",
            ],
        ),
        ("madx/xlmr-base-mlm-trg", ["data.train={ner/en: wikiann:en/train, mlm/mi: wikipedia/mi.txt}"]),
        ("badx/mbert-ud", ["stages.languages.mixture.ratio=[5,1]"]),
        ("hyper-adapters/ml50-base", ["train.steps=160000", "method.num_blocks=0", "method.linear=true"]),
        ("hyper-adapters/ml50-base", ["method.encoder_inputs=[source]", "method.dropout=0.2"]),
        ("hyper-adapters/ml50-big", ["method.hidden_size=102"]),
    ]
    wrong = []
    for name, overrides in variants:
        try:
            changed = load_recipe(name, overrides)
        except PolyloomError as error:
            wrong.append(f"{name} {' '.join(overrides)}: {error}")
            continue
        if changed == recipe_of(name) or len(changed.data.train) < 2:
            wrong.append(f"{name} {' '.join(overrides)}: changes nothing, or leaves no data")
    assert not wrong, "\n".join(wrong)


# -- each one trains --------------------------------------------------------------------------------------------------

TINY = {
    "adapter_size": 8, "task_adapter_size": 4, "hidden_size": 16, "embedding_size": 8, "projection_size": 8,
    "latent_size": 8,
}  # fmt: skip
LAYERS = {"layers": 1, "ffn_dim": 32, "attention_heads": 2}
STEPS = 2
BASES = {
    "hyperx/mbert-few-shot": "hyperx/mbert-base",
    "full/mbert-few-shot": "full/mbert",
    "madx/mbert-few-shot": "madx/mbert",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny backbones, a vocabulary, and made-up data as they are needed."""
    folder: Path = tmp_path_factory.mktemp("world")
    for model_type in ("bert", "xlm-roberta"):
        (folder / model_type).mkdir()
        write_encoder(folder / model_type, model_type)
    languages = {language for name in NAMES if "/ml" in name for language in recipe_of(name).languages}
    write_vocabulary(folder / "vocabulary", sorted(languages))
    return folder


def small(name: str, world: Path) -> dict[str, Any]:
    """What is smaller than in the recipe."""
    recipe = recipe_of(name)
    method = {key: size for key, size in TINY.items() if hasattr(recipe.method, key)}
    changes: dict[str, Any] = {f"method.{key}": size for key, size in method.items()}
    changes |= {"data.root": str(world / "data"), "train.steps": STEPS, "train.epochs": None}
    if recipe.backbone.preset:
        sizes = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in LAYERS.items()}
        changes |= {"backbone.config": {"d_model": 16, **sizes}, "backbone.tokenizer": str(world / "vocabulary")}
    else:
        assert recipe.backbone.config is not None
        changes |= {"backbone.name": str(world / recipe.backbone.config["model_type"]), "train.max_length": 32}
    for stage in recipe.stages:
        changes |= {f"stages.{stage}.train.steps": STEPS, f"stages.{stage}.train.epochs": None}
    if name in BASES:
        changes |= {"init_from": str(world / BASES[name].replace("/", "-"))}
    if "artificial" in name:
        changes["data.train"] = {condition: [shortened(c, recipe)] for condition, (c,) in recipe.data.train.items()}
    return changes


def shortened(corpus: str, recipe: Recipe) -> str:
    """The slice of a corpus of 24 pairs that corresponds to the recipe's."""
    ends = [
        int(match[1])
        for (c,) in recipe.data.train.values()
        if place(c) == place(corpus) and (match := re.search(r":(\d+)\]$", c))
    ]
    return re.sub(r"\d+(?=[:\]])", lambda m: str(int(m[0]) * 24 // max(ends)), corpus) if ends else corpus


def train(name: str, world: Path, into: Path) -> list[Event]:
    """Train a recipe for a few steps through the public function; return the events."""
    changes, events = small(name, world), list[Event]()
    write_data(recipe_of(name), world / "data")
    if name in BASES and not Path(changes["init_from"]).exists():
        train(BASES[name], world, Path(changes["init_from"]))
    polyloom.train(name, into, overrides=changes, on_event=events.append)
    return events


# What tests of training elsewhere have not: directions with stages of their own, a start from another run, and 28
# directions of a backbone that is not pretrained. The others differ in languages, and in sizes, which are tiny here.
IN_CI = ("badx/mbert-ud", "hyperx/mbert-few-shot", "hyper-adapters/ml15")
TRAINED = [pytest.param(name, marks=() if name in IN_CI else NIGHTLY) for name in NAMES if name != PLAN_ONLY]


@pytest.mark.parametrize("name", TRAINED)
def test_it_trains_as_it_stands(name: str, world: Path, tmp_path: Path) -> None:
    recipe = recipe_of(name)
    events = train(name, world, tmp_path / "run")
    refused = [event.what for event in events if isinstance(event, IssueFound) and event.refused]
    assert refused == []
    stages = [event.stage for event in events if isinstance(event, StageStarted)]
    assert set(recipe.stages) <= set(stages)
    assert sum(isinstance(event, StepTaken) for event in events) == STEPS * len(stages), "no step was skipped"
    validated = [event for event in events if isinstance(event, Validated)]
    labelled = {name for name in recipe.data.validation if not name.startswith("mlm/")}
    if recipe.data.validation:
        assert set(validated[-1].scores) == labelled, "the last stage is selected by labelled data"
