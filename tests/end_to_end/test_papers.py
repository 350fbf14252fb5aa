"""docs/papers.md says where everything in the papers is: all that it names exists, and every value is the recipe's.

Each text in backticks has one of the forms that `check` knows; another form is an error. Every test lists all that is
wrong. The papers themselves are not in the repository. Where they are at hand, the values of the page must occur in
them, and all numbers of their experimental setups must occur on the page.
"""

import re
import shlex
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer
from pydantic import TypeAdapter, ValidationError

from polyloom.cli import app
from polyloom.config import Recipe, load_recipe, resolved
from polyloom.config.recipe import PRESETS
from polyloom.errors import PolyloomError
from polyloom.io.yaml import parse_yaml
from polyloom.methods import METHODS
from polyloom.metrics.score import METRICS
from polyloom.recipes import shipped_recipes
from polyloom.tasks import TASKS
from polyloom.workflows.planning import Cost, plan
from tests.shared import SHARED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers.md"
TEXT = PAGE.read_text()
PAPERS = SHARED / "papers"
COLUMNS = ["item", "paper", "where", "note"]
PLACEMENTS = ("layer", "output", "norm")
WORDS = {*METHODS, *TASKS, *METRICS, *PRESETS, *PLACEMENTS}
SECTIONS = ("backbone", "method", "tasks", "data", "mixture", "optim", "train", "stages")
NUMBER = r"\d+(?:\.\d+)?(?:e-\d+)?"


class Paper(NamedTuple):
    """What a paper has, and where the text of its experimental setup begins and ends."""

    file: str
    equations: int
    tables: tuple[int, ...]
    figures: int
    sections: tuple[str, ...]
    setup: tuple[str, str] | None = None
    not_of_the_setup: frozenset[str] = frozenset()


CONTENTS = {
    "MAD-X": Paper("mad-x-slides.txt", 0, (2, 5), 0, ()),  # talk slides; equations have no numbers
    "BAD-X": Paper(
        "bad-x.txt", 0, (1, 2, 3, 4, 5, 6), 2, ("§2", "§3", "§3.1", "§3.2", "Appendix A", "Appendix B", "Appendix C"),
        ("3.1 Experimental Setup", "3.2 Results and Discussion"),
        frozenset({"1793"}),  # the number of a page
    ),
    "Hyper-X": Paper(
        "hyper-x.txt", 5, (1, 2, 3, 4, 5, 6), 7,
        ("§2.1", "§2.2", "§3.1", "§4", "§4.1", "§4.2", "§5", "§6.1", "§6.2", "§6.3", "§6.4",
         "Appendix A", "Appendix B.1", "Appendix B.2", "Appendix C", "Appendix D"),
        ("4 Experiments\n", "5 Zero-shot Transfer Results"),
    ),
    "Hyper-Adapters": Paper(
        "hyper-adapters.txt", 2, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 7,
        ("§2", "§2.1", "§3", "§3.1", "§3.2", "§4", "§5", "§6.1", "§6.2", "§6.3", "§6.4", "§6.5",
         "Appendix A", "Appendix B.1", "Appendix B.2", "Appendix B.3", "Appendix C"),
        ("## 4 Experimental Setup", "### **5** Results"),
        frozenset({"100"}),  # OPUS100
    ),
}  # fmt: skip


class Row(NamedTuple):
    """A row of a table of the page."""

    paper: str
    item: str
    value: str
    where: str
    note: str


def rows_of(text: str) -> list[Row]:
    found = []
    for section in text.split("\n## ")[1:]:
        paper = section.partition("\n")[0]
        for line in section.splitlines():
            if line.startswith("|"):
                columns = [column.strip() for column in line.strip("|").split("|")]
                assert len(columns) == len(COLUMNS), line
                if columns != COLUMNS and set(columns[0]) - {"-"}:
                    found.append(Row(paper, *columns))
    return found


ROWS = [row for row in rows_of(TEXT) if row.paper in CONTENTS]
REFERENCES = sorted(set(re.findall(r"`([^`]+)`", TEXT)))


# -- what is named exists ---------------------------------------------------------------------------------------------


@cache
def recipe_of(name: str, overrides: tuple[str, ...] = ()) -> Recipe:
    return load_recipe(name, overrides)


@cache
def settings_of(name: str, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    return resolved(recipe_of(name, overrides))


@cache
def cost_of(name: str, overrides: tuple[str, ...] = ()) -> Cost:
    recipe = recipe_of(name, overrides)
    # Alternatives are not asked for, and counting them takes most of the time.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("polyloom.workflows.planning.costs.METHODS", {})
        return plan(recipe).costs()[recipe.method.name]


def recipes(names: str) -> list[str]:
    """The shipped recipes of names that are separated by commas and may have wildcards."""
    found = []
    for pattern in names.split(", "):
        matching = [name for name in shipped_recipes() if fnmatchcase(name, pattern)]
        assert matching, f"no shipped recipe {pattern}"
        found += matching
    return found


def look_up(settings: Any, path: str) -> Any:
    for key in path.split("."):
        assert isinstance(settings, Mapping), f"{path}: {key} is not in a section"
        assert key in settings, f"{path}: no {key}"
        settings = settings[key]
    return settings


def check_recipe(reference: str) -> None:
    """Check ``RECIPES [+ OVERRIDES][: SETTING = VALUE]``, with ``len(SETTING)`` and ``plan.COST`` as settings."""
    what, _, claim = (
        reference.partition(": ") if re.search(r": [\w(]+[\w./*()-]* = ", reference) else (reference, "", "")
    )
    names, _, changes = what.partition(" + ")
    overrides = tuple(shlex.split(changes))
    for name in recipes(names):
        recipe = recipe_of(name, overrides)
        if overrides:
            assert recipe != recipe_of(name), f"{overrides} change nothing in {name}"
        if claim:
            path, _, value = claim.partition(" = ")
            if path.startswith("plan."):
                cost = getattr(cost_of(name, overrides), path.removeprefix("plan."))
                assert f"{cost / 1e6:.1f}M" == value, f"{name}: {path} is {cost:,}"
            elif counted := re.fullmatch(r"len\((.+)\)", path):
                assert len(look_up(settings_of(name, overrides), counted[1])) == int(value), name
            else:
                assert look_up(settings_of(name, overrides), path) == parse_yaml(value, source=reference), (
                    f"{name}: {path}"
                )


def check_setting(reference: str) -> None:
    """Check that a setting exists and accepts the value, if there is one: ``method.norm: after``."""
    path, _, value = reference.partition(": ")
    section, _, rest = path.partition(".")
    configs: list[Any] = []
    if section == "method":
        configs = [method.config_type for method in METHODS.values()]
    elif section == "tasks":
        task, _, rest = rest.partition(".")
        configs = [TASKS[task].Config]
    elif section == "stages":
        _, section, rest = rest.split(".", 2)
    if not configs:
        configs, rest = [Recipe], f"{section}.{rest}"
    assert any(_accepts(config, rest.split("."), value) for config in configs), f"no setting {reference}"


def _accepts(config: Any, path: list[str], value: str) -> bool:
    """Return whether a config has a setting and accepts a value, read as in a recipe."""
    fields = config.__dataclass_fields__
    if path[0] not in fields:
        return False
    if len(path) > 1:
        return _accepts(fields[path[0]].type, path[1:], value)
    if value:
        try:
            TypeAdapter(fields[path[0]].type).validate_python(parse_yaml(value, source="value"), strict=False)
        except ValidationError:
            return False
    return True


def check_command(reference: str) -> None:
    """Check that a command and its options exist: ``polyloom probe swap --donors``."""
    command: Any = typer.main.get_command(app)
    names = shlex.split(reference)[1:]
    while names and isinstance(command, click.Group | typer.core.TyperGroup):
        assert names[0] in command.commands, f"no command {names[0]}"
        command = command.commands[names.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {name for name in names if name.startswith("-")} <= known, names


def check_path(reference: str) -> None:
    path, _, test = reference.partition("::")
    assert (ROOT / path).exists(), f"no file {path}"
    if test:
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), flags=re.MULTILINE), f"no test {test}"


def check_name(reference: str) -> None:
    parts = reference.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return
    raise AssertionError(f"cannot import {reference}")


def check(reference: str) -> None:
    """Check one text in backticks."""
    if reference.startswith("polyloom "):
        check_command(reference)
    elif reference.startswith("polyloom."):
        check_name(reference)
    elif reference.partition("/")[0] in ("tests", "docs", "experiments", "benchmarks", "examples", "src"):
        check_path(reference)
    elif reference.partition(".")[0] in SECTIONS and "/" not in reference.partition(":")[0]:
        check_setting(reference)
    elif "/" in reference.partition(" ")[0]:
        check_recipe(reference)
    else:
        assert reference in WORDS, f"`{reference}`: neither a recipe, setting, command, file, name, method nor task"


def mistake(reference: str) -> str:
    """Return what is wrong with a text in backticks, or nothing."""
    try:
        check(reference)
    except (AssertionError, AttributeError, PolyloomError) as error:
        return f"`{reference}`: {error}"
    return ""


def test_what_is_named_exists_and_has_the_value() -> None:
    assert len(REFERENCES) > 200
    wrong = list(filter(None, map(mistake, REFERENCES)))
    assert not wrong, "\n".join(wrong)


def test_what_does_not_exist_is_found() -> None:
    wrong = [
        "hyperx/mbert-huge", "hyperx/mbert-base: optim.lr = 1e-3", "hyperx/mbert-base: optim.rate = 1e-4",
        "hyperx/mbert-base: len(languages) = 15", "hyperx/mbert-base + method.projection_size=192",
        "hyperx/mbert-base + method.size=32", "hyperx/mbert-base: plan.extra_parameters = 76.0M",
        "method.norm: between", "method.normal", "tasks.mlm.wait", "train.stepz", "stages.tasks.train.stepz",
        "data.filter.max_width", "polyloom fly", "polyloom probe swap --donor", "tests/nn/test_nn.py::test_no",
        "docs/none.md", "polyloom.nn.blocks.Bottle", "hyperz",
    ]  # fmt: skip
    overlooked = [reference for reference in wrong if not mistake(reference)]
    assert not overlooked, "\n".join(overlooked)


# -- nothing is left out ----------------------------------------------------------------------------------------------


def test_every_row_says_where_or_why_not() -> None:
    assert len(ROWS) > 100
    wrong = []
    for row in ROWS:
        has_place = re.search(r"`[^`]+`|\]\(", row.where) or (row.where == "–" and row.note)
        if not (row.item and row.value and has_place):
            wrong.append(row)
    assert not wrong, "\n".join(map(str, wrong))
    assert len({(row.paper, row.item) for row in ROWS}) == len(ROWS), "an item twice"


def numbered(kind: str, paper: str) -> set[int]:
    """The numbers of the equations, tables or figures that the items of a paper name: ``Tables 4 to 6, Figure 2``."""
    found = set()
    for row in ROWS:
        if row.paper == paper:
            for first, last in re.findall(rf"{kind}s? (\d+)(?: (?:to|and) (\d+))?", row.item):
                found |= set(range(int(first), int(last or first) + 1))
    return found


def test_all_equations_tables_figures_and_sections_are_there() -> None:
    wrong = []
    for paper, contents in CONTENTS.items():
        expected = {
            "Equation": set(range(1, contents.equations + 1)),
            "Table": set(contents.tables),
            "Figure": set(range(1, contents.figures + 1)),
        }
        for kind, numbers in expected.items():
            wrong += [f"{paper}: {kind} {number}" for number in numbers ^ numbered(kind, paper)]
        items = " ".join(row.item for row in ROWS if row.paper == paper)
        missing = [name for name in contents.sections if not re.search(rf"{re.escape(name)}(?![.\d]*\d)", items)]
        wrong += [f"{paper}: {name}" for name in missing]
    assert not wrong, "\n".join(wrong)


def test_the_invertible_adapter_has_both_passes() -> None:
    items = " ".join(row.item for row in ROWS if row.paper == "MAD-X")
    assert "forward pass" in items
    assert "inverted pass" in items


def test_every_recipe_of_a_paper_is_named() -> None:
    """Wildcards do not count: a new recipe needs a row of its own."""
    named = {name for reference in REFERENCES for name in re.split(r" \+ |: ", reference)[0].split(", ")}
    of_no_paper = {"hyper-adapters/nllb-200", "hyper-stack/xlmr-base"}
    assert {name for name in shipped_recipes() if not name.startswith("mini/")} - named == of_no_paper


# -- the papers, where they are at hand -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The text of every paper."""
    paths = {paper: PAPERS / contents.file for paper, contents in CONTENTS.items()}
    if missing := [path.name for path in paths.values() if not path.exists()]:
        pytest.skip(f"{', '.join(missing)}: not at hand, the papers are not part of the repository")
    return {paper: plain(path.read_text()) for paper, path in paths.items()}


def plain(text: str) -> str:
    """Write numbers in one way: 100,000 as 100000, 1e−4 as 1e-4, 0.10 as it is."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.replace("−", "-"))
    return re.sub(r"(?<=\de) ?- ?(?=\d)", "-", text)


def test_the_values_are_those_of_the_paper(texts: dict[str, str]) -> None:
    known = {paper: set(re.findall(NUMBER, text)) for paper, text in texts.items()}
    wrong = [
        f"{row.paper}, {row.item}: {number}"
        for row in ROWS
        for number in re.findall(NUMBER, plain(row.value))
        if number not in known[row.paper]
    ]
    assert not wrong, "\n".join(wrong)


def test_all_numbers_of_the_setup_are_there(texts: dict[str, str]) -> None:
    wrong = []
    for paper, contents in CONTENTS.items():
        if contents.setup is None:
            continue
        setup = texts[paper].partition(contents.setup[0])[2].partition(contents.setup[1])[0]
        assert len(setup) > 2000, paper
        # Years, footnotes and references to other places are no settings.
        lines = [line for line in setup.splitlines() if "\t" not in line and not line.startswith("Table")]
        no_settings = r"\b(19|20)\d\d[a-z]?\b|<sup>.*?</sup>|§ ?[\d.]+|(Table|Figure|Section) \d+"
        numbers = set(re.findall(NUMBER, re.sub(no_settings, "", "\n".join(lines))))
        rows = " ".join(plain(f"{row.item} {row.value}") for row in ROWS if row.paper == paper)
        missing = numbers - set(re.findall(NUMBER, rows)) - contents.not_of_the_setup
        wrong += [f"{paper}: {number}" for number in missing]
    assert not wrong, "\n".join(wrong)


def test_the_counts_are_those_of_the_paper(texts: dict[str, str]) -> None:
    for paper in ("Hyper-X", "Hyper-Adapters"):
        contents, text = CONTENTS[paper], texts[paper]
        for kind, count in (("Table", len(contents.tables)), ("Figure", contents.figures)):
            captions = {int(n) for n in re.findall(rf"^{kind} (\d+):", text, flags=re.MULTILINE)}
            assert captions == set(range(1, count + 1)), f"{paper}: {kind}"
        assert len(set(re.findall(r"\(\d\)\$\$|\\tag\{\d\}\$\$", text))) == contents.equations, paper
