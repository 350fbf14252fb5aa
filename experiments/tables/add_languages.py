"""Tables of docs/adding-languages-results.md."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from experiments.add_languages import PLAN, Addition, additions
from experiments.read import CORPORA, stored
from polyloom.cli.render.tables import markdown

HYPERX, MADX = PLAN["runs"]["hyperx"], PLAN["runs"]["madx"]
NAMES = {"hyperx": "Hyper-X", "madx": "MAD-X"}
CLOSE = 2.0  # points that a suggested donor may be below the best


def _result(*addition: Any) -> dict[str, Any]:
    return stored("add-languages", Addition(*addition).name)


def _after(*addition: Any) -> str:
    return ", ".join(f"{score:.1f}" for score in _result(*addition)["after"].values())


def _losses(*addition: Any) -> str:
    return " → ".join(f"{-x:.2f}" for x in _result(*addition)["held_out"])


def text() -> str:
    """Show tags of languages added from raw text."""
    lines = []
    for language in HYPERX["languages"]:
        for amount in PLAN["lines"]:
            line = [language, str(amount)]
            for method in NAMES:
                tags = {donor: scores["pos"] for donor, scores in _result(method)["donors"][language].items()}
                oracle = max(tags, key=lambda donor: (tags[donor], donor))
                line.append(f"{tags[oracle]:.1f} ({oracle})")
                line += [_after(method, language, amount, start) for start in PLAN["runs"][method]["init_from"]]
            lines.append(line)
    columns = [
        f"{name}: {column}"
        for method, name in NAMES.items()
        for column in ("oracle donor", *PLAN["runs"][method]["init_from"])
    ]
    return markdown(["language", "lines", *columns], lines)


def fit() -> str:
    """Show losses of held-out raw text before and after training."""
    columns = [(method, start) for method in NAMES for start in ("best-donor", "fresh")]
    rows = [
        [language, str(lines), *(_losses(method, language, lines, start) for method, start in columns)]
        for language in HYPERX["languages"]
        for lines in PLAN["lines"]
    ]
    return markdown(["language", "lines", *(f"{NAMES[method]}: {start}" for method, start in columns)], rows)


def seconds() -> str:
    """Show the trainable parameters and the time it takes to train them."""
    lines = []
    for method, trainable in (("hyperx", "64"), ("madx", "a language adapter"), ("mt", "50")):
        added = [addition for addition in additions() if addition.method == method and addition.language]
        took = [_result(*addition)["seconds"] for addition in added]
        lines.append([method, trainable, f"{min(took):.0f}–{max(took):.0f}"])
    return markdown(["method", "trainable parameters", "seconds"], lines)


def judged(method: str) -> dict[str, tuple[str, str, dict[str, float]]]:
    """Find for every language the donor that its text suggests and the best donor of its tags, with all tag scores."""
    by_language = {}
    for language, scores in _result(method)["donors"].items():
        suggested, best = (max(scores, key=lambda donor: scores[donor][task]) for task in ("mlm", "pos"))
        by_language[language] = suggested, best, {donor: score["pos"] for donor, score in scores.items()}
    return by_language


def donors() -> str:
    """Compare the suggested with the best donor of every language."""
    lines = []
    for method in NAMES:
        for language, (suggested, best, tags) in judged(method).items():
            shown = [f"{donor} {tags[donor]:.1f}" for donor in (suggested, best)]
            lines.append([method, language, *shown, f"{tags[suggested] - tags[best]:+.1f}"])
    return markdown(["method", "language", "suggested", "best", "difference"], lines)


def near(method: str) -> list[str]:
    """List the languages whose suggested donor is close to the best."""
    return [
        language
        for language, (suggested, best, tags) in judged(method).items()
        if tags[best] - tags[suggested] <= CLOSE
    ]


def close() -> str:
    """Count the languages whose suggested donor is close to the best."""
    lines = []
    for method in NAMES:
        rows = judged(method).values()
        suggested_mean = fmean(tags[suggested] for suggested, _, tags in rows)
        any_mean = fmean(fmean(tags.values()) for _, _, tags in rows)
        english = [tags[best] - tags["en"] <= CLOSE for _, best, tags in rows if "en" in tags]
        always = f"{sum(english)} of {len(english)}"
        counts = [f"{len(near(method))} of {len(rows)}", always]
        lines.append([method, *counts, f"{suggested_mean:.1f}", f"{any_mean:.1f}"])
    within = f"within {CLOSE:g} points"
    columns = [f"suggested: {within}", f"English: {within}", "suggested, mean", "any donor, mean"]
    return markdown(["method", *columns], lines)


def translation() -> str:
    """Show BLEU and losses of a language added to a translation run, and BLEU of a run trained with it."""
    lines, directions = [], ("mt/eng/por", "mt/por/eng")
    for amount in PLAN["lines"]:
        for start in PLAN["runs"]["mt"]["init_from"]:
            result = _result("mt", "por", amount, start)
            scores = [f"{result['before'][name]:.1f} → {result['after'][name]:.1f}" for name in directions]
            lines.append([str(amount), start, *scores, _losses("mt", "por", amount, start)])
    known = stored("mt-table", "hyper-33-0")["results"]
    lines.append(["all", "*trained with it*", *(f"{known[name]['scores'][0]['value']:.1f}" for name in directions), ""])
    columns = ["BLEU from English", "BLEU into English", "held-out loss"]
    return markdown(["pairs", "initialisation", *columns], lines)


assert set(PLAN["data"]) & set(CORPORA["text"]) == set(), "added languages are new"
TABLES: dict[str, Callable[[], str]] = {
    "added-text": text, "added-fit": fit, "added-seconds": seconds, "added-donors": donors, "added-close": close,
    "added-translation": translation,
}  # fmt: skip
