"""Tables of docs/adding-languages-results.md."""

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

from experiments.add_languages import PLAN, Addition
from experiments.comparison import Comparison, Key, Scores, Side, Tables
from experiments.read import CORPORA, Row, Selection, Value, stored

HYPERX = PLAN["runs"]["hyperx"]
NAMES = {"hyperx": "Hyper-X", "madx": "MAD-X"}
METHODS = {"hyperx": "hyperx", "madx": "madx", "mt": "hyper-adapters"}
CLOSE = 2.0  # points that a suggested donor may be below the best
LINES = [str(lines) for lines in PLAN["lines"]]


def _result(*addition: Any) -> dict[str, Any]:
    return stored("add-languages", Addition(*addition).name)


def _values(method: str, values: Mapping[str, float]) -> Selection:
    """Select values of a run to which languages were added, all with the same number of steps and lines per batch."""
    recipe = {"method": {"name": METHODS[method]}, "train": {"steps": PLAN["steps"], "rows_per_batch": 32}}
    runs = [{"experiment": "add-languages", "seed": 0, "recipe": recipe}]
    row = Row(runs, [{condition: Value(value) for condition, value in values.items()}])
    return [(row, condition) for condition in values]


def text() -> Tables:
    """Compare initialisations of languages added from raw text by their tags, and with the best donor."""
    return {name: partial(_text, method) for method, name in NAMES.items()}


def _text(method: str) -> Comparison:
    cells = [(language, lines) for language in HYPERX["languages"] for lines in LINES]
    donors = _result(method)["donors"]
    oracle = {x: max(scores["pos"] for scores in donors[x].values()) for x in HYPERX["languages"]}
    best: dict[Key, Scores] = {cell: _values(method, {f"pos/{cell[0]}": oracle[cell[0]]}) for cell in cells}
    sides = [Side("oracle donor", best)]
    for start in PLAN["runs"][method]["init_from"]:
        after: dict[Key, Scores] = {
            (language, lines): _values(method, _result(method, language, int(lines), start)["after"])
            for language, lines in cells
        }
        sides.append(Side(start, after))
    return Comparison(sides=sides, labels=("language", "lines"), across=True)


def fit() -> Tables:
    """Compare losses of held-out raw text before and after training."""
    return {name: partial(_fit, method) for method, name in NAMES.items()}


def _fit(method: str) -> Comparison:
    sides = []
    for start in ("best-donor", "fresh"):
        for place, when in enumerate(("before", "after")):
            losses: dict[Key, Scores] = {
                (language, lines): _values(
                    method, {f"mlm/{language}": -_result(method, language, int(lines), start)["held_out"][place]}
                )
                for language in HYPERX["languages"]
                for lines in LINES
            }
            sides.append(Side(f"{start}, {when}", losses))
    return Comparison(sides=sides, labels=("language", "lines"), across=True, digits=2)


def judged(method: str) -> dict[str, tuple[str, str, dict[str, float]]]:
    """Find for every language the donor that its text suggests and the best donor of its tags, with all tag scores."""
    by_language = {}
    for language, scores in _result(method)["donors"].items():
        suggested, best = (max(scores, key=lambda donor: scores[donor][task]) for task in ("mlm", "pos"))
        by_language[language] = suggested, best, {donor: score["pos"] for donor, score in scores.items()}
    return by_language


def donors() -> Tables:
    """Compare the suggested with the best donor of every language."""
    return {name: partial(_donors, method) for method, name in NAMES.items()}


def _donors(method: str) -> Comparison:
    best: dict[Key, Scores] = {}
    chosen: dict[Key, Scores] = {}
    for language, (suggested, most, tags) in judged(method).items():
        key = language, suggested, most
        best[key], chosen[key] = (_values(method, {f"pos/{language}": tags[donor]}) for donor in (most, suggested))
    sides = [Side("best donor's tags", best), Side("suggested donor's tags (− best)", chosen)]
    labels = ("language", "suggested donor", "best donor")
    return Comparison(sides=sides, labels=labels, base="best donor's tags", across=True)


def near(method: str) -> list[str]:
    """List the languages whose suggested donor is close to the best."""
    return [
        language
        for language, (suggested, best, tags) in judged(method).items()
        if tags[best] - tags[suggested] <= CLOSE
    ]


def close() -> Tables:
    """Compare ways to choose a donor, in all languages but English: it cannot be its own donor."""
    return {name: partial(_close, method) for method, name in NAMES.items()}


def _close(method: str) -> Comparison:
    rows = {language: row for language, row in judged(method).items() if language != "en"}
    ways: dict[str, Callable[[str, str, dict[str, float]], float]] = {
        "best": lambda _, best, tags: tags[best],
        "suggested by text": lambda suggested, _, tags: tags[suggested],
        "English": lambda _, __, tags: tags["en"],
        "any, mean": lambda _, __, tags: fmean(tags.values()),
    }
    sides = []
    for label, way in ways.items():
        tags = {f"pos/{language}": way(*row) for language, row in rows.items()}
        within = {f"pos/{x}": 100.0 * (row[2][row[1]] - tags[f"pos/{x}"] <= CLOSE) for x, row in rows.items()}
        scores: dict[Key, Scores] = {
            "POS": _values(method, tags),
            f"languages within {CLOSE:g} points of the best, %": _values(method, within),
        }
        sides.append(Side(label, scores))
    return Comparison(sides=sides, labels=("donor",))


def translation() -> Tables:
    """Compare initialisations of a language added to a translation run by BLEU and losses."""
    return {"": _translation}


def _translation() -> Comparison:
    sides = []
    for start in PLAN["runs"]["mt"]["init_from"]:
        scores: dict[Key, Scores] = {}
        for lines in LINES:
            found = _result("mt", "por", int(lines), start)
            for place, when in enumerate(("before", "after")):
                for way, condition in (("BLEU from English", "mt/eng/por"), ("BLEU into English", "mt/por/eng")):
                    scores[lines, way, when] = _values("mt", {condition: found[when][condition]})
                scores[lines, "held-out loss", when] = _values("mt", {"loss": -found["held_out"][place]})
        sides.append(Side(start, scores))
    return Comparison(sides=sides, labels=("pairs", "score", "training"), across=True, digits=2)


assert set(PLAN["data"]) & set(CORPORA["text"]) == set(), "added languages are new"
TABLES: dict[str, Callable[[], Tables]] = {
    "added-text": text, "added-fit": fit, "added-donors": donors, "added-close": close,
    "added-translation": translation,
}  # fmt: skip
