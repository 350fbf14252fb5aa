"""A comparison of the result pages is fair, or it is not printed."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from experiments import read
from experiments.comparison import Comparison, Scores, Side, UnfairError, batching
from experiments.draw import BANNERS, DOCS, PAGES, draw_table
from experiments.figures import FIGURES
from experiments.jobs import jobs
from experiments.read import Row, Value, mean, result, results
from experiments.run import portable
from experiments.storage import read_plan
from experiments.tables import confirmations, transfer

BLOCK = re.compile(r"<!-- ([\w-]+) -->\n(.*?)<!-- end -->", flags=re.DOTALL)
FULL = {"method": {"name": "full"}, "train": {"rows_per_batch": 16}, "mixture": {"datasets_per_batch": 1}}


def row_of(values: Mapping[str, float], *, seeds=(0,), experiment="transfer", **recipe) -> Row:
    runs = [{"experiment": experiment, "seed": seed, "recipe": FULL | recipe} for seed in seeds]
    return Row(runs, [{condition: Value(value) for condition, value in values.items()} for _ in seeds])


def side(label: str, values: Mapping[str, float], **about) -> Side:
    row = row_of(values, **about)
    return Side(label, {"POS": [(row, condition) for condition in values]})


def compare(*sides: Side) -> Comparison:
    return Comparison(sides=sides, labels=("method",), base=sides[0].label)


TAGS = {"pos/tr": 60.0, "pos/wo": 40.0}
METHODS = [side(name, TAGS, method={"name": name}) for name in ("full", "multilingual", "madx")]


def test_equal_rows_are_printed():
    better = side("madx", {"pos/tr": 62.0, "pos/wo": 41.0}, method={"name": "madx"})
    printed = compare(*METHODS[:2], better).markdown()
    assert "| full | 50.0 |" in printed
    assert "| madx | 51.5 (+1.5) |" in printed


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (side("other", TAGS | {"pos/en": 95.0}), r"test sets differ \(full: 2; other: 3\)"),
        (side("other", {"pos/tr": 60.0, "pos/en": 95.0}), "test sets differ"),
        (side("other", TAGS, data={"test": {"pos/tr": "ud:tr_boun/test[:100]"}}), "test sets differ"),
        (
            side("other", TAGS, mixture={"datasets_per_batch": 4}),
            r"batches differ \(full: 16 rows of 1 dataset; other: 16 rows of 4 datasets\)",
        ),
        (side("other", TAGS, train={"rows_per_batch": 8}), "batches differ"),
        (side("other", TAGS, train={"tokens_per_batch": 512}), "batches differ .*512 tokens"),
        (side("other", TAGS, stages={"tasks": {"mixture": {"datasets_per_batch": 2}}}), "batches differ"),
        (side("other", TAGS, experiment="head"), r"learning rates tried differ \(full: 3; other: 0\)"),
        (side("other", TAGS, seeds=(0, 1)), r"seeds differ \(full: 0; other: 0 or 1\)"),
        (side("other", TAGS, method={"name": "hyperx"}), r"learning rates tried differ \(full: 3; other: 8\)"),
        (side("other", TAGS, method={"name": "madx"}), "baselines are missing: multilingual"),
    ],
)
def test_unequal_rows_are_refused(other, reason):
    with pytest.raises(UnfairError, match=reason):
        compare(METHODS[0], other)


def test_a_missing_baseline_is_refused():
    compare(*METHODS)
    with pytest.raises(UnfairError, match="baselines are missing: full"):
        compare(*METHODS[1:])


def test_every_column_has_the_same_test_sets_even_if_all_together_are_the_same():
    one, other = (row_of(TAGS), row_of(TAGS))
    crossed: list[dict[str, Scores]] = [
        {"a": [(one, "pos/tr")], "b": [(one, "pos/wo")]},
        {"a": [(other, "pos/wo")], "b": [(other, "pos/tr")]},
    ]
    with pytest.raises(UnfairError, match="test sets differ"):
        compare(*(Side(str(number), scores) for number, scores in enumerate(crossed)))  # type: ignore[arg-type]


def test_batches_are_read_from_recipes_of_any_version_and_from_all_stages():
    assert batching(FULL | {"mixture": {"cells_per_batch": 4}}) == ("16 rows of 4 datasets",)
    stages = {"languages": {"mixture": {"datasets_per_batch": 4}}, "tasks": {"train": {"rows_per_batch": 8}}}
    assert batching(FULL | {"stages": stages}) == ("16 rows of 4 datasets", "8 rows of 1 dataset")


def test_as_many_learning_rates_are_counted_as_the_plan_has():
    rows, tried = read_plan("tuning")["rows"], read_plan("tuning")["tried"]
    stage = [settings["method"] for settings in read_plan("language-stage")["rows"].values()]
    for method in ("full", "madx", "multilingual", "hyperx"):
        trials = sum(settings["method"] == method for settings in rows.values())
        assert tried[method] == trials + (stage.count("hyperx") if method == "hyperx" else 0), method


def test_the_former_headline_cannot_be_printed():
    """Hyper-X with labels of six languages against other methods, and with English in one row only."""
    with pytest.raises(UnfairError, match=r"batches differ .*; learning rates tried differ .*; baselines are missing"):
        transfer.mixed()["Methods"]()
    names = [f"hyperx-mixed{number}" for number in transfer.LABELS]
    with_english, without = transfer.mixed_scores(names), transfer.mixed_scores(names, without="en")
    with pytest.raises(UnfairError, match="test sets differ"):
        compare(Side("mixed", with_english), Side("English", without))


def test_the_headline_on_equal_test_sets():
    """Without English, whose labels one row has. Rows of three seeds are shown by their first, which all rows have."""
    column = "POS, other task labelled"

    def score(names, *, seeds):
        rows = {n: result("transfer", name).first(seeds) for n, name in zip(transfer.LABELS, names, strict=True)}
        cells = [(rows[n], c) for n in rows for c in equal if c.partition("/")[2] not in transfer.LABELS[n]["pos"]]
        return round(mean(cells), 1)

    labels = transfer.mixed()["Hyper-X: labels of six languages, or of English"]()
    (chosen,) = labels.sides[0].selections[column]
    equal = [condition for _, condition in chosen]
    assert sorted(equal) == ["pos/id", "pos/te", "pos/tr", "pos/vi", "pos/wo"]
    assert score(["hyperx-mixed1", "hyperx-mixed2"], seeds=1) == 67.9
    assert score(["hyperx-multi"] * 2, seeds=3) == 67.8
    assert score(["full-multi"] * 2, seeds=3) == 69.4
    assert labels.shown("six languages, one task each", column).startswith("67.9 (-0.1")


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, tables in PAGES.items() for name in tables])
def test_every_table_is_of_comparisons_or_says_what_is_missing(page, name):
    drawn = dict(BLOCK.findall((DOCS / page).read_text(encoding="utf-8")))[name]
    for build in PAGES[page][name]().values():
        note = ""
        try:
            assert type(build()) is Comparison
        except UnfairError as unfair:
            note = f"*Left out, since the rows cannot be compared: {unfair}*"
        except KeyError as missing:
            note = f"*Not measured yet: {missing.args[0]}.*"
        assert note in drawn


@pytest.mark.parametrize("page", PAGES)
def test_no_table_and_no_score_is_written_by_hand(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert {name for name, _ in BLOCK.findall(text)} - {"superseded"} == PAGES[page].keys()
    by_hand = re.sub(r"## Setup.*?\n(?=## )", "", BLOCK.sub("", text), flags=re.DOTALL)
    assert not [line for line in by_hand.splitlines() if line.startswith("|") or re.search(r"\d\.\d", line)]
    figures = set(re.findall(r"figures/results-([\w-]+)\.png", text))
    assert figures <= FIGURES.keys()


def test_only_comparisons_format_tables():
    sources = {path: path.read_text(encoding="utf-8") for path in Path(read.__file__).parent.rglob("*.py")}
    assert [path.name for path, text in sources.items() if "import markdown" in text] == ["comparison.py"]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_of_a_fair_comparison(name):
    for build in FIGURES[name][1]().values():
        build()


@pytest.mark.parametrize("page", BANNERS)
def test_pages_of_former_measurements_say_so_at_their_top(page):
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    assert lines[4].startswith("> **Superseded.**")


@pytest.fixture
def no_results(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "RESULTS", tmp_path)
    results.cache_clear()
    yield tmp_path
    results.cache_clear()


def test_what_was_not_measured_is_said(no_results):
    assert draw_table("head") == "*Not measured yet: head/frozen.*\n"
    assert draw_table("start") == "*Not measured yet: start/lang-adapters-former.*\n"


def write_results(folder: Path, experiment: str, scores: Mapping[str, float]) -> None:
    (folder / experiment).mkdir()
    for job in jobs(experiment, runs=Path("runs")):
        found = dict.fromkeys(job.recipe["data"]["test"], scores[job.row] + job.seed)
        training = {"validation": [dict.fromkeys(found, 3.0)], "parameters": {"adapters": 7, "backbone": 9}}
        about = {"experiment": experiment, "row": job.row, "seed": job.seed, "recipe": portable(job.recipe)}
        (folder / experiment / f"{job.name}.json").write_text(
            json.dumps(about | {"training": training, "results": found})
        )


@pytest.mark.parametrize(
    ("experiment", "scores", "line"),
    [
        (
            "head",
            {"frozen": 50.0, "learning": 55.0, "no-text": 54.0},
            "| raw text, head learning | 56.0 ± 1.0 (+5.0) |",
        ),
        (
            "start",
            dict(zip(confirmations.START, (12.0, 40.0), strict=True)),
            "adapters `identity` | 7 | 41.0 ± 1.0 (+28.0) |",
        ),
    ],
)
def test_confirmations_are_compared_once_they_are_measured(no_results, monkeypatch, experiment, scores, line):
    monkeypatch.setattr(read, "first_scores", lambda found: {c: Value(value) for c, value in found.items()})
    write_results(no_results, experiment, scores)
    assert line in draw_table(experiment)
    results.cache_clear()
    (no_results / experiment / f"{list(scores)[1]}-2.json").unlink()
    assert "seeds differ" in draw_table(experiment)


def test_a_comparison_cannot_become_unfair_later():
    fair = compare(*METHODS)
    with pytest.raises(UnfairError):
        replace(fair, sides=[METHODS[0], METHODS[2]])
    with pytest.raises(AttributeError):
        fair.sides = []  # type: ignore[misc]
