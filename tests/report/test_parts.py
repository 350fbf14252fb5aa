"""Parts of the page by themselves: nothing gets out of its text, colours can be read, drawings say what is so."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError
from markupsafe import escape

from polyloom.conditions import Condition
from polyloom.data.mixture import Share
from polyloom.data.records import Bitext, Pair, Record, Tagged, Tree
from polyloom.evaluate.matrix import Matrix, Result
from polyloom.figures.palette import DARK, LIGHT
from polyloom.figures.trees import draw_tree
from polyloom.metrics.attachment import attachment_statistics
from polyloom.metrics.score import ACCURACY, F1, LAS, PERPLEXITY, Metric, Score, signature
from polyloom.report.elements import Section, Shading, Table, TableCell, p_value, render, shade
from polyloom.report.page import render_page, style_sheet
from polyloom.report.sections.examples import (
    Example,
    Examples,
    choose_conditions,
    choose_sentence,
    examples_section,
    spread,
)
from polyloom.report.sections.probes import weights_section
from polyloom.report.sections.scores import scores_section
from polyloom.report.sources import read_source, read_sources
from polyloom.tasks.parsing import Arcs, Parsing
from polyloom.tasks.tagging import Pos
from tests.report.conftest import write_probes
from tests.report.reading import Page

HOSTILE = ["<script>alert(1)</script>", "</title></style>", "&lt;", '" onload="x', "'", "]]>", "\x00\x1b[31m", "\ud800"]


def score(value: float, metric: Metric = ACCURACY) -> Score:
    """Of two sentences, about so many percent, or that perplexity."""
    if metric is PERPLEXITY:
        statistics_NP = np.array([[np.log(value), 1.0]] * 2)
    else:
        statistics_NP = np.array([[round(value * 10)] * (len(metric.statistics) - 1) + [1000]] * 2)
    return Score(metric, statistics_NP, signature(metric, statistics_NP, condition="x/y", corpus="c", sha256="0" * 64))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_text_wherever_it_stands(text):
    shown = re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", "�", text)
    table = Table(text, [text, text], [[text, TableCell(text, title=text, note=text)]], foot=[[text, text]])
    section = Section("settings", text, {"several": False, "table": table}).html()
    read = Page(section)
    usual = Page(section.replace(str(escape(shown)), "x"))
    assert [name for name, _ in read.elements] == [name for name, _ in usual.elements]
    assert {shown} >= {attributes["title"] for _, attributes in read.elements if "title" in attributes}
    for element in ("h2", "caption", "th", "td", "small"):
        assert shown in [piece for name, piece in read.texts if name == element] or shown in read.text(), element
    section.encode()


def test_a_template_that_misses_something_is_an_error():
    with pytest.raises(UndefinedError):
        render("settings.html")


@pytest.mark.parametrize("text", HOSTILE)
def test_what_stands_in_a_corpus_stays_in_its_place(text):
    examples = [
        Example(Condition("pos", "aa"), text, 1, Tagged((text, "b"), (text, "X")), {text: [text + "!", "X"]}),
        Example(
            Condition("dep", "aa"), text, 1, Tree((text, "b"), (0, 1), (text, "x")), {text: Arcs([2, 0], ["x", text])}
        ),
        Example(Condition("nli", "aa"), text, 1, Pair(text, text, text), {text: "other"}),
        Example(Condition("mt", "aa", "bb"), text, 1, Bitext(text, text), {text: text + text}),
    ]
    records: list[Record] = [Tagged(("a", "b"), ("N", "X")), Tree(("a", "b"), (0, 1), ("r", "x")), Pair("a", "b", "c")]
    answers = (["V", "X"], Arcs([2, 0], ["x", "r"]), "other", "c")
    plain = [
        replace(example, corpus="c", record=record, predictions={"run": answer})
        for example, record, answer in zip(examples, [*records, Bitext("a", "b")], answers, strict=True)
    ]
    hostile, usual = (Page(examples_section(Examples(given), 1).html()) for given in (examples, plain))
    assert [name for name, _ in hostile.elements] == [name for name, _ in usual.elements]
    assert [set(a) for _, a in hostile.elements] == [set(a) for _, a in usual.elements]


def test_the_page_puts_every_colour_of_a_figure_into_dark_mode():
    style = style_sheet()
    palettes = [
        dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    assert palettes == [LIGHT, DARK, LIGHT], "light, dark, printed"
    for name, color in LIGHT.items():
        for kind in ("fill", "stroke"):
            assert f'svg [{kind}="{color}"]{{{kind}:var(--{name})}}' in style
    assert set(re.findall(r"var\(--(\w+)\)", style)) <= LIGHT.keys()
    assert not re.findall(
        r"#[0-9a-f]{6}",
        Path(sys.modules[render_page.__module__].__file__ or "")
        .with_name("templates")
        .joinpath("style.css")
        .read_text(),
    )


def test_shades_go_from_the_darkest_to_the_brightest():
    assert [shade(share) for share in (-1, 0, 0.5, 1, 2)] == ["s0", "s0", "s8", "s15", "s15"]


@pytest.mark.parametrize(("p", "text"), [(0.0, "< 0.001"), (0.00099, "< 0.001"), (0.001, "= 0.001"), (0.25, "= 0.250")])
def test_p_values_are_never_zero(p, text):
    assert p_value(p) == text


def test_better_is_brighter_also_where_less_is_better():
    rising, falling = Shading([10.0, 20.0, 30.0], "accuracy"), Shading([10.0, 100.0, 1000.0], "perplexity")
    assert [rising.classes(v) for v in (10, 20, 30)] == ["s0", "s8", "s15"]
    assert [falling.classes(v) for v in (1000, 90, 10)] == ["s0", "s8", "s15"]
    assert Shading([5.0], "accuracy").classes(5.0) == "s15"
    assert Shading([float("nan")], "accuracy").classes(float("nan")) == ""


def test_refused_cells_and_directions_are_shown_with_their_reasons(madx):
    source = read_source(madx, name="run", split="test")
    results = {Condition("mt", a, b): Result((score(10 * i + j),), zero_shot=a == "cc")
             for i, a in enumerate(("aa", "bb", "cc")) for j, b in enumerate(("aa", "bb")) if a != b}  # fmt: skip
    refused = {Condition("mt", "bb", "cc"): "no <token> for it"}
    read = Page(scores_section([replace(source, matrix=Matrix(results, refused, {}))]).html())
    assert "no <token> for it" in read.text()
    assert ("td", "–") in read.texts
    assert "no <token> for it" in read.attributes("title")
    heads = [text for name, text in read.texts if name == "th"]
    assert [h for h in heads if h in ("aa", "bb", "cc")] == ["aa", "bb", "cc", "aa", "bb", "cc"], "a grid"
    assert sum("z" in (c or "").split() for c in read.attributes("class")) == 2


def test_languages_are_spread_from_worst_to_best(madx):
    assert spread("abcdefg", 3) == ["a", "d", "g"]
    assert spread("abcdefg", 1) == ["d"]
    assert spread("ab", 3) == ["a", "b"]
    source = read_source(madx, name="run", split="test")
    names = [f"pos/l{i}" for i in range(9)] + ["mlm/l0"]
    recipe = replace(source.recipe, data=replace(source.recipe.data, test=dict.fromkeys(names, ("c",))))
    values = {f"pos/l{i}": (40, 10, 90, 30, 20, 80, 70, 60, 50)[i] for i in range(9)}
    results = {Condition.parse(name): Result((score(value),), zero_shot=False) for name, value in values.items()}
    chosen = choose_conditions(replace(source, recipe=recipe, matrix=Matrix(results)), 3)
    assert [values[str(condition)] for condition in chosen] == [10, 50, 90]
    losses = {
        c: Result((score(float(v), PERPLEXITY),), zero_shot=False)
        for c, v in zip(results, values.values(), strict=True)
    }
    chosen = choose_conditions(replace(source, recipe=recipe, matrix=Matrix(losses)), 3)
    assert [values[str(condition)] for condition in chosen] == [90, 50, 10]
    assert len(choose_conditions(replace(source, recipe=recipe, matrix=None), 3)) == 3


def test_the_sentence_is_the_first_of_handy_length_that_any_run_got_wrong():
    right = [Tagged(("w",) * n, ("X",) * n) for n in (1, 4, 4, 40, 4)]
    answers = [[list(r.tags) for r in right] for _ in range(2)]
    assert choose_sentence(Pos, right, answers) == 1
    answers[1][3][0] = answers[1][4][0] = answers[0][0][0] = "Y"
    assert choose_sentence(Pos, right, answers) == 4
    assert choose_sentence(Pos, right[:1], [answers[0][:1]]) == 0


def test_arcs_are_wrong_exactly_where_las_counts_them_wrong():
    draw = np.random.default_rng(0)
    relations = ["nsubj", "nsubj:pass", "obj", "acl:relcl", "acl"]
    for size in range(1, 30):
        words = tuple(f"w{i}" for i in range(size))
        gold, said = ((draw.integers(0, size + 1, size), draw.choice(relations, size).tolist()) for _ in range(2))
        tree = Tree(words, tuple(map(int, gold[0])), tuple(gold[1]))
        wrong = Parsing.mistakes(tree, Arcs(said[0].tolist(), said[1]))
        assert len(wrong) == size - attachment_statistics([tree], [Arcs(said[0].tolist(), said[1])])[0, 1]
        drawn = Page(draw_tree(words, tree, Arcs(said[0].tolist(), said[1])))
        classes = [a.get("class") for name, a in drawn.elements if name == "g"]
        assert classes.count("arc predicted") == classes.count("arc missed") == len(wrong)
        assert classes.count("arc right") == size - len(wrong)
        assert (
            "title",
            f"Tree of {size} words; " + (f"{len(wrong)} of them are attached wrongly" if wrong else "all correct"),
        ) in drawn.texts


@pytest.mark.nightly
def test_a_hundred_languages_make_a_page_well_below_two_megabytes(madx, tmp_path):
    run = Path(shutil.copytree(madx, tmp_path / "run"))
    languages = [f"language{i}" for i in range(100)]
    write_probes(run, languages, [f"family {i % 12}" for i in range(100)])
    source = read_source(run, name="run", split="test")
    assert set(source.probes) == {"languages", "swap", "weights", "capacity"}
    results = {Condition(task, one): Result((score(i, metric),), zero_shot=i > 50) for i, one in enumerate(languages)
             for task, metric in (("pos", ACCURACY), ("ner", F1), ("dep", LAS))}  # fmt: skip
    names = [f"{task}/{one}" for task in ("mlm", "pos", "ner", "dep") for one in languages]
    losses = dict.fromkeys(("mlm", "pos", "ner", "dep"), 1.0)
    step, validation = source.history.steps[0], source.history.validations[0]
    history = replace(
        source.history,
        steps=[replace(step, total=i, losses=losses, datasets={names[i % 400]: 8}) for i in range(1, 5000)],
        validations=[
            replace(validation, total=i, scores=dict.fromkeys(names[100:], 50.0), best=True)
            for i in range(100, 5000, 100)
        ],
        mixtures={"joint": [Share(name, 1000, 0.0025, 1.5) for name in names]},
        stages={"joint": replace(source.history.stages["tasks"], stage="joint", steps=5000)},
    )
    large = replace(source, matrix=Matrix(results), history=history)
    other = replace(large, name="other", path=tmp_path / "other")
    text = render_page([large, other], Examples(), count=0, line="polyloom report")
    regions = [a["aria-label"] for _, a in Page(text).elements if a.get("role") == "region"]
    assert len(regions) == len(set(regions)), "two runs, and every table can be told from the others"
    assert len(text.encode()) < 1_500_000
    assert json.dumps(languages[99])[1:-1] in text


def test_how_full_the_hypernetwork_is_stands_below_its_weights(hyperx):
    page = weights_section(read_sources([hyperx])).html()
    for line in ("language embeddings (participation ratio)", "1.9", "active units of layer 1", ">27<", ">32<"):
        assert line in page, line
