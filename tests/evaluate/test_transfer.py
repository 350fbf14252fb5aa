"""One run per source language, tested in every target: the right score in the right place, or an error."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from polyloom.cli import app
from polyloom.conditions import Condition
from polyloom.config import load_recipe
from polyloom.errors import PolyloomError
from polyloom.evaluate.matrix import MARK, Matrix, Result
from polyloom.evaluate.transfer import transfer_table
from polyloom.workflows.run import Run
from polyloom.workflows.train import train_recipe
from tests.evaluate.test_comparison import score
from tests.tiny_run import LANGUAGES, tiny_recipe

SOURCES = {"en": 9.0, "tr": 7.0, "yo": 5.0}


def scored(source, value, *, targets=("mt", "yo", "tr", "en"), task="pos", **more):
    """A run with labelled data in one language; its scores tell source and target."""
    results = {
        Condition(task, target): Result((score(value, corpus=f"{target}.txt", seed=i),), zero_shot=target != source)
        for i, target in enumerate(targets)
    }
    return [f"{task}/{source}", "mlm/mt"], Matrix(results, run={"method": "madx"} | more)


def test_every_score_is_where_its_source_and_target_meet():
    runs = {f"runs/{source}": scored(source, value) for source, value in SOURCES.items()}
    found = transfer_table(runs)
    assert (found.task, found.metric) == ("pos", "accuracy")
    assert found.sources == ("en", "tr", "yo")
    assert found.targets == ("en", "tr", "yo", "mt"), "sources first, in their order: the diagonal is a diagonal"
    for row, source in enumerate(found.sources):
        for column, target in enumerate(found.targets):
            result = runs[f"runs/{source}"][1].results[Condition("pos", target)]
            assert found.scores[row, column] == result.scores[0].value
            assert ((source, target) in found.zero_shot) == (source != target)
    others = [found.scores[row, 0] for row in (1, 2)]
    assert found.means()[0] == pytest.approx(np.mean(others)), "without the source that is the target"
    assert found.means()[3] == pytest.approx(found.scores[:, 3].mean())
    columns, rows = found.table()
    assert columns == [r"source \ target", "en", "tr", "yo", "mt"]
    assert rows[0][1:3] == [f"{found.scores[0, 0]:.2f}", f"{found.scores[0, 1]:.2f}{MARK}"]
    assert rows[-1][0] == f"mean of zero-shot{MARK}"


def test_a_mean_is_over_all_sources_or_not_shown():
    runs = {"a": scored("en", 9.0), "b": scored("tr", 7.0, targets=("tr", "en"))}
    found = transfer_table(runs)
    assert np.isnan(found.scores).sum() == 2
    assert [math.isnan(mean) for mean in found.means()] == [False, False, True, True]
    assert found.table()[1][1][-1] == ""


def test_several_sources_of_one_run_are_one_row_and_pairs_are_a_row_for_each_source():
    several = scored("en", 9.0)
    several = [*several[0], "pos/de"], several[1]
    assert transfer_table({"a": several, "b": scored("en", 5.0)}).sources == ("en+de", "en")
    results = {
        Condition("pos", source, target): Result((score(8, corpus=f"{target}.txt"),), zero_shot=True)
        for source in ("en", "ar")
        for target in ("mt", "sw")
    }
    pairs = transfer_table({"a": (["pos/en", "pos/ar"], Matrix(results, run={"method": "badx"}))})
    assert (pairs.sources, pairs.targets) == (("en", "ar"), ("mt", "sw"))
    assert not np.isnan(pairs.scores).any()


def test_what_cannot_be_compared_is_refused():
    one = scored("en", 9.0)
    with pytest.raises(PolyloomError, match="a and b both have a score from en to mt"):
        transfer_table({"a": one, "b": scored("en", 7.0)})
    with pytest.raises(PolyloomError, match=r"runs of madx and hyperx\. A table is of one method"):
        transfer_table({"a": one, "b": scored("tr", 9.0, method="hyperx")})
    trained_on, other = scored("tr", 7.0)
    changed = {c: replace(r, scores=(score(7, corpus=f"{c.source}.txt[:200]"),)) for c, r in other.results.items()}
    with pytest.raises(PolyloomError, match=r"a and b, pos in mt: .*one score is of all of the corpus, .* \[:200\]"):
        transfer_table({"a": one, "b": (trained_on, replace(other, results=changed))})
    with pytest.raises(PolyloomError, match="b has no labelled data of pos"):
        transfer_table({"a": one, "b": (["mlm/tr"], scored("tr", 7.0)[1])})
    with pytest.raises(PolyloomError, match="no run has a score of pos by f1"):
        transfer_table({"a": one}, metric="f1")
    with pytest.raises(PolyloomError, match=r"which task\? Name one with --task. Known: pos, ner"):
        transfer_table({"a": one, "b": scored("en", 9.0, task="ner")})
    assert transfer_table({"a": one, "b": scored("en", 9.0, task="ner")}, task="ner").sources == ("en",)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """MAD-X with tags of one language each, and BAD-X with one source; tested in all languages."""
    folder = tmp_path_factory.mktemp("transfer")
    recipe = tiny_recipe(folder, "madx", tasks=("mlm", "pos"), train={"steps": 4}, data={"validation": {}})
    given = load_recipe(recipe).data.train
    text = {name: list(corpora) for name, corpora in given.items() if name.startswith("mlm")}
    for source in LANGUAGES[:2]:
        own = {"data.train": text | {f"pos/{source}": list(given[f"pos/{source}"])}}
        train_recipe(load_recipe(recipe, own), folder / source)
    bilingual = tiny_recipe(folder, "badx", tasks=("mlm", "pos"), train={"steps": 4}, data={"validation": {}})
    source, *targets = LANGUAGES
    pairs = {f"pos/{source}/{target}": [str(folder / f"{target}-test.conllu")] for target in targets}
    own = {"data.train": text | {f"pos/{source}": list(given[f"pos/{source}"])}, "data.test": pairs}
    train_recipe(load_recipe(bilingual, own), folder / "badx")
    return folder


def polyloom(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_the_command_shows_and_draws_what_evaluate_stored(runs, tmp_path):
    folders = [runs / source for source in LANGUAGES[:2]]
    with pytest.raises(PolyloomError, match=r"no scores on test here\. Make them: polyloom evaluate"):
        polyloom("transfer", *folders)
    for folder in folders:
        polyloom("evaluate", folder, "--tasks", "pos")
    picture = tmp_path / "transfer.svg"
    done = polyloom("transfer", *folders, "--figure", picture)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["pos", "accuracy:", "source", "\\", "target", *LANGUAGES]
    assert picture.stat().st_size > 1000
    cells = json.loads(polyloom("transfer", *folders, "--format", "json").stdout)["scores"]
    assert len(cells) == 6
    for cell in cells:
        matrix = Run.load(runs / cell["source"]).evaluate({f"pos/{cell['target']}": [
            str(runs / f"{cell['target']}-test.conllu")]})  # fmt: skip
        (result,) = matrix.results.values()
        assert result.scores[0].value == cell["value"]
        assert result.zero_shot == cell["zero_shot"] == (cell["source"] != cell["target"])
    assert polyloom("transfer", *folders, "--format", "tsv").stdout.count("\n") == 7
    assert polyloom("transfer", *folders, "--format", "markdown").stdout.startswith("| pos accuracy: source")


def test_pairs_of_languages_are_shown_too(runs):
    polyloom("evaluate", runs / "badx")
    lines = polyloom("transfer", runs / "badx").stdout.splitlines()
    assert lines[0].split()[-2:] == list(LANGUAGES[1:])
    assert lines[2].startswith(LANGUAGES[0])
    assert lines[2].count(MARK) == 2
