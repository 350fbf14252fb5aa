"""Directions are of the group that they belong to, and tables show what the matrix has."""

import numpy as np
import pytest

from polyloom.cli.render.evaluate import Extras, render
from polyloom.cli.render.tables import aligned
from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.evaluate.directions import Resources, grid, grid_table, group_table, groups
from polyloom.evaluate.matrix import MARK, Matrix, Result
from polyloom.metrics.score import ACCURACY, BLEU, CHRF, Metric, Score

SCORES = {"en/de": 30, "en/yo": 6, "en/tr": 15, "de/en": 40, "yo/en": 20, "tr/en": 24, "de/tr": 10, "yo/de": 2}
SCORES |= {"tr/yo": 9}  # the only one without English that was trained
PAIRS = {"en/de": 1000, "de/en": 1000, "en/tr": 100, "tr/en": 100, "en/yo": 99, "yo/en": 99, "tr/yo": 5000}


def direction(name: str) -> Condition:
    return Condition.parse(f"mt/{name}")


def score(metric: Metric, value: float) -> Score:
    """That is `value`: so many of a thousand n-grams are right, of every order."""
    statistics_NP = np.full((2, len(metric.statistics)), 1000)
    statistics_NP[:, [name.startswith("right") for name in metric.statistics]] = round(10 * value)
    return Score(metric, statistics_NP, "")


def scored() -> Matrix:
    results = {
        direction(name): Result((score(BLEU, value), score(CHRF, value / 2)), name in ("de/tr", "yo/de"))
        for name, value in SCORES.items()
    }
    return Matrix(results, {direction("tr/de"): "no tr-de"})


RESOURCES = Resources({direction(name): pairs for name, pairs in PAIRS.items()}, low=100, high=1000)


def test_groups_by_english_and_by_training():
    found = {name: ["/".join(d.languages) for d in some] for name, some in groups(scored()).items()}
    assert found == {
        "En→X": ["en/de", "en/yo", "en/tr"],
        "X→En": ["de/en", "yo/en", "tr/en"],
        "X→Y": ["tr/yo"],
        f"X→Y{MARK}": ["de/tr", "yo/de"],
    }


def test_levels_begin_and_end_where_they_are_told():
    found = {name: ["/".join(d.languages) for d in some] for name, some in groups(scored(), RESOURCES).items()}
    assert [*found] == [
        "En→X", "En→X high", "En→X medium", "En→X low", "X→En", "X→En high", "X→En medium", "X→En low",
        "X→Y", "X→Y high", f"X→Y{MARK}",
    ]  # fmt: skip
    assert (found["En→X high"], found["En→X medium"], found["En→X low"]) == (["en/de"], ["en/tr"], ["en/yo"])


def test_what_was_trained_on_nobody_knows_how_much_is_not_called_low():
    with pytest.raises(PolyloomError, match="mt/en/yo: was trained, but its number of training pairs is unknown"):
        groups(scored(), Resources({direction("en/de"): 5}, low=1, high=2))
    with pytest.raises(PolyloomError, match="low 3 and high 2"):
        Resources({}, low=3, high=2)


@pytest.mark.parametrize(("code", "english"), [("en", True), ("eng", True), ("eng_Latn", True), ("enm", False)])
def test_english_has_many_codes(code, english):
    result = Result((score(BLEU, 1),), zero_shot=False)
    assert list(groups(Matrix({direction(f"{code}/de"): result}))) == ["En→X" if english else "X→Y"]
    assert list(groups(Matrix({direction(f"de/{code}"): result}))) == ["X→En" if english else "X→Y"]


def test_means_by_hand():
    columns, rows = group_table(scored())
    assert columns == ["group", "directions", "bleu", "chrf"]
    assert rows == [
        ["En→X", "3", "17.00", "8.50"],
        ["X→En", "3", "28.00", "14.00"],
        ["X→Y", "1", "9.00", "4.50"],
        [f"X→Y{MARK}", "2", "6.00", "3.00"],
    ]


def test_other_tasks_are_no_directions():
    tags = Result((score(ACCURACY, 90),), zero_shot=False)
    both = Matrix({**scored().results, Condition("pos", "tr"): tags, Condition("pos", "en", "tr"): tags})
    assert group_table(both) == group_table(scored())
    assert group_table(Matrix({Condition("pos", "en", "tr"): tags}))[1] == []


def test_sources_are_rows_and_targets_columns():
    languages, scores = grid(scored(), "bleu")
    assert languages == ["en", "de", "yo", "tr"]
    assert scores[languages.index("en"), languages.index("de")] == pytest.approx(30)
    assert scores[languages.index("de"), languages.index("en")] == pytest.approx(40)
    assert np.isfinite(scores).sum() == len(SCORES)
    assert grid_table(scored(), "chrf") == (
        [r"source \ target", "en", "de", "yo", "tr"],
        [
            ["en", "", "15.0", "3.0", "7.5"],
            ["de", "20.0", "", "", f"5.0{MARK}"],
            ["yo", "10.0", f"1.0{MARK}", "", ""],
            ["tr", "12.0", "–", "4.5", ""],
        ],
    )
    with pytest.raises(PolyloomError, match=r"no translation is scored by blue. Known: bleu, chrf\."):
        grid(scored(), "blue")


def test_the_command_shows_directions_and_groups():
    text = render(scored(), "table", Extras())
    assert aligned(*group_table(scored())) in text
    assert "de/tr" in text
    assert f"10.00{MARK}" in text
    assert "| X→En | 3 | 28.00 | 14.00 |" in render(scored(), "markdown", Extras())
    tags = Matrix({Condition("pos", "tr"): Result((score(ACCURACY, 90),), zero_shot=False)})
    assert "group" not in render(tags, "table", Extras())
