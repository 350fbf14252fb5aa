"""Tables of languages that were added, for docs/growing-results.md."""

from collections.abc import Callable
from statistics import fmean

from growth import PLAN, fits
from read import CORPORA, stored

from polyloom.cli.render.tables import markdown

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


def losses(method: str, language: str, lines: int, begin: str) -> str:
    """Of a piece of what was held out, before and after."""
    return " → ".join(f"{-x:.2f}" for x in stored("growth", f"{method}-{language}-{lines}-{begin}")["held_out"])


def fit() -> str:
    """How well raw text of the new languages is predicted before and after."""
    columns = [("hyperx", "best-donor"), ("hyperx", "fresh"), ("madx", "best-donor"), ("madx", "fresh")]
    rows = [
        [language, str(lines), *(losses(method, language, lines, begin) for method, begin in columns)]
        for language in PLAN["runs"]["hyperx"]["languages"]
        for lines in PLAN["lines"]
    ]
    return markdown(["language", "lines", *(" ".join(column) for column in columns)], rows)


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


def near(method: str) -> list[str]:
    """The languages whose suggested donor is close to the best."""
    return [language for language, (told, best, tags) in judged(method).items() if tags[best] - tags[told] <= CLOSE]


def close() -> str:
    """For how many languages the suggestion is close to the best."""
    lines = []
    for method in ("hyperx", "madx"):
        rows = judged(method).values()
        suggested = fmean(tags[told] for told, _, tags in rows)
        anyone = fmean(fmean(tags.values()) for _, _, tags in rows)
        english = [tags[best] - tags["en"] <= CLOSE for _, best, tags in rows if "en" in tags]
        always = f"{sum(english)} of {len(english)}"
        lines.append([method, f"{len(near(method))} of {len(rows)}", always, f"{suggested:.1f}", f"{anyone:.1f}"])
    within = f"within {CLOSE:g} points"
    return markdown(["method", within, f"always English: {within}", "suggested, mean", "any donor, mean"], lines)


def translation() -> str:
    """BLEU of a language added to a translation run, into it and out of it, and if it was there from the beginning."""
    lines, ways = [], ("mt/eng/por", "mt/por/eng")
    for amount in PLAN["lines"]:
        for begin in PLAN["runs"]["mt"]["begin"]:
            found = stored("growth", f"mt-por-{amount}-{begin}")
            scores = [f"{found['before'][way]:.1f} → {found['after'][way]:.1f}" for way in ways]
            lines.append([str(amount), begin, *scores, losses("mt", "por", amount, begin)])
    known = stored("mt-table", "hyper-33-0")["cells"]
    lines.append(["all", "*trained with it*", *(f"{known[way]['scores'][0]['value']:.1f}" for way in ways), ""])
    return markdown(["pairs", "begun as", "BLEU from English", "BLEU into English", "loss, held out"], lines)


assert set(PLAN["data"]) & set(CORPORA["text"]) == set(), "what is added is new"
TABLES: dict[str, Callable[[], str]] = {
    "growth-text": text, "growth-fit": fit, "growth-seconds": seconds, "growth-donors": donors, "growth-close": close,
    "growth-translation": translation,
}  # fmt: skip
