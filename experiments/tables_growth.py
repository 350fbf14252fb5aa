"""Tables of languages that were added, for docs/growing-results.md."""

from collections.abc import Callable
from statistics import fmean

from growth import PLAN, fits
from read import CORPORA, stored

from polyloom.cli.tables import markdown

BEGINS = PLAN["runs"]["hyperx"]["begin"]
CLOSE = 2.0  # points that a suggested donor may be worse than the best


def after(method: str, language: str, lines: int, begin: str) -> str:
    """Scores with what was learnt."""
    return ", ".join(
        f"{score:.1f}" for score in stored("growth", f"{method}-{language}-{lines}-{begin}")["after"].values()
    )


def text() -> str:
    """Tags of languages added from raw text."""
    lines = []
    for language in PLAN["runs"]["hyperx"]["languages"]:
        donors = {method: stored("growth", f"{method}-donors")["donors"][language] for method in ("hyperx", "madx")}
        best = {method: max((s["pos"], donor) for donor, s in some.items()) for method, some in donors.items()}
        for amount in PLAN["lines"]:
            found = [after("hyperx", language, amount, begin) for begin in BEGINS]
            adapters = [after("madx", language, amount, begin) for begin in PLAN["runs"]["madx"]["begin"]]
            donor = [f"{score:.1f} ({name})" for score, name in best.values()]
            lines.append([language, str(amount), donor[0], *found, donor[1], *adapters])
    head = [f"Hyper-X: {begin}" for begin in BEGINS] + ["MAD-X: best donor's"]
    adapters = [f"MAD-X: {begin}" for begin in PLAN["runs"]["madx"]["begin"]]
    return markdown(["language", "lines", "Hyper-X: best donor's", *head, *adapters], lines)


def seconds() -> str:
    """How long it took, and how many numbers are learnt."""
    lines = []
    for method, numbers in (("hyperx", "64"), ("madx", "a language adapter"), ("mt", "50")):
        took = [stored("growth", fit.name)["seconds"] for fit in fits() if fit.method == method and fit.language]
        lines.append([method, numbers, f"{min(took):.0f}–{max(took):.0f}"])
    return markdown(["method", "what is learnt", "seconds"], lines)


def judged(method: str) -> dict[str, tuple[str, str, dict[str, float]]]:
    """Of every language, the donor that its text suggests, the one that serves its tags best, and all their scores."""
    found = {}
    for language, scores in stored("growth", f"{method}-donors")["donors"].items():
        told, best = (max(scores, key=lambda donor: scores[donor][task]) for task in ("mlm", "pos"))
        found[language] = told, best, {donor: score["pos"] for donor, score in scores.items()}
    return found


def donors() -> str:
    """Of every language, the donor that its text suggests, and the one that serves its tags best."""
    lines = []
    for method in ("hyperx", "madx"):
        for language, (told, best, tags) in judged(method).items():
            shown = [f"{donor} {tags[donor]:.1f}" for donor in (told, best)]
            lines.append([method, language, *shown, f"{tags[told] - tags[best]:+.1f}"])
    return markdown(["method", "language", "suggested", "best", "difference"], lines)


def close() -> str:
    """For how many languages the suggestion is close to the best."""
    lines = []
    for method in ("hyperx", "madx"):
        rows = judged(method).values()
        few = [told for told, best, tags in rows if tags[best] - tags[told] <= CLOSE]
        suggested = fmean(tags[told] for told, _, tags in rows)
        anyone = fmean(fmean(tags.values()) for _, _, tags in rows)
        lines.append([method, f"{len(few)} of {len(rows)}", f"{suggested:.1f}", f"{anyone:.1f}"])
    return markdown(["method", f"within {CLOSE:g} points", "suggested, mean", "any donor, mean"], lines)


def translation() -> str:
    """BLEU of a language added to a translation run, into it and out of it."""
    lines = []
    for amount in PLAN["lines"]:
        begun = stored("growth", f"mt-por-{amount}-likeliest")
        before = ", ".join(f"{score:.1f}" for score in begun["before"].values())
        found = [after("mt", "por", amount, begin) for begin in PLAN["runs"]["mt"]["begin"]]
        lines.append([str(amount), f"{before} ({begun['like'][0]})", *found])
    return markdown(["pairs", "best donor's", *PLAN["runs"]["mt"]["begin"]], lines)


assert set(PLAN["data"]) & set(CORPORA["text"]) == set(), "what is added is new"
TABLES: dict[str, Callable[[], str]] = {
    "growth-text": text, "growth-seconds": seconds, "growth-donors": donors, "growth-close": close,
    "growth-translation": translation,
}  # fmt: skip
