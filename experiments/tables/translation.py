"""Tables of docs/translation-results.md."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from experiments.comparison import Comparison, Key, Scores, Side, Tables
from experiments.jobs import DIRECTIONS, ENGLISH, HALVES, OTHERS
from experiments.read import (
    Row,
    Selection,
    Value,
    first_scores,
    result,
    second,
    source_losses,
    stored,
)
from polyloom.metrics.score import Array
from polyloom.probe.languages import purity

LEVELS = DIRECTIONS["resources"]
GROUP = {language: group for group, members in DIRECTIONS["groups"].items() for language in members}
RESCALED = {  # rows with their width, and whether they rescale
    "plain-78": (78, "off"), "rescaled-78": (78, "on"), "plain-400": (400, "off"), "rescaled-400": (400, "on"),
}  # fmt: skip


def out_of(row: Row, languages: Sequence[str] = OTHERS) -> Selection:
    """Select English into other languages."""
    return [(row, f"mt/{ENGLISH}/{language}") for language in languages]


def into(row: Row, languages: Sequence[str] = OTHERS) -> Selection:
    """Select other languages into English."""
    return [(row, f"mt/{language}/{ENGLISH}") for language in languages]


def both(row: Row, languages: Sequence[str] = OTHERS) -> Selection:
    """Select both ways."""
    return [*out_of(row, languages), *into(row, languages)]


def untrained(row: Row) -> Selection:
    """Select the pairs that were not trained."""
    return [(row, condition) for condition in row.scores[0] if ENGLISH not in condition.split("/")]


def via_english(row: Row) -> Selection:
    """Select the same pairs, translated via English."""
    return untrained(Row(row.runs, [first_scores(run["pivot"]) for run in row.runs]))


def losses(row: Row) -> Array:
    """Average the validation loss over directions, in nats per token ``[seed, validation]``."""
    return np.array([[np.mean(np.log(list(v.values()))) for v in run["training"]["validation"]] for run in row.runs])


def added(row: Row) -> int:
    """Count the parameters that a method adds to the backbone."""
    sizes = row.runs[0]["training"]["parameters"].items()
    return sum(size for name, size in sizes if name.partition(".")[0] != "backbone")


def best_losses(row: Row) -> Selection:
    """Select the validation losses of all directions at the best checkpoint of each seed, in nats per token."""
    best = losses(row).argmin(1)
    scores = [
        {f"loss {c}": Value(float(np.log(perplexity))) for c, perplexity in run["training"]["validation"][k].items()}
        for run, k in zip(row.runs, best, strict=True)
    ]
    scored = Row(row.runs, scores)
    return [(scored, condition) for condition in scores[0]]


STORED = ("dense", "lang-adapters", "pair-adapters")
GENERATED = ("hyper-17", "hyper-33", "hyper-100")
SETS = {"Shared and stored weights": STORED, "Generated weights": GENERATED, "All methods": (*STORED, *GENERATED)}


def table() -> Tables:
    """Compare methods: parameters and scores."""
    return {title: partial(_table, names) for title, names in SETS.items()}


def _table(names: Sequence[str]) -> Comparison:
    sides = []
    for name in names:
        row = result("mt-table", name)
        scores: dict[Key, Scores] = {"En→X": out_of(row), "X→En": into(row), "low, both ways": both(row, LEVELS["low"])}
        scores |= {f"chrF {way}": ways(second(row, "chrf")) for way, ways in (("En→X", out_of), ("X→En", into))}
        sides.append(Side(name, scores, (f"{added(row):,}",)))
    return Comparison(sides=sides, labels=("method, BLEU", "added parameters"), base=names[0])


def final_losses() -> Tables:
    """Compare validation losses."""
    return {title: partial(_losses, names) for title, names in SETS.items() if title != "All methods"}


def _losses(names: Sequence[str]) -> Comparison:
    sides = [Side(name, {"validation loss": best_losses(result("mt-table", name))}) for name in names]
    return Comparison(sides=sides, labels=("method",), base=names[0], digits=3)


def sources() -> Tables:
    """Compare losses with the right and with a wrong source."""
    return {title: partial(_sources, names) for title, names in SETS.items() if title != "All methods"}


def _sources(names: Sequence[str]) -> Comparison:
    sides = []
    for name in names:
        row = result("mt-table", name)
        scores: dict[Key, Scores] = {}
        for way, ways in (("En→X", out_of), ("X→En", into)):
            for source, key in (("right source", "own"), ("wrong source", "other")):
                by_seed = [source_losses(f"{name}-{run['seed']}") for run in row.runs]
                scored = Row(row.runs, [{c: Value(loss[key]) for c, loss in found.items()} for found in by_seed])
                scores[f"{way}, {source}"] = ways(scored)
        sides.append(Side(name, scores))
    return Comparison(sides=sides, labels=("method",), digits=2)


def rescaling() -> Tables:
    """Compare widths with and without rescaling, output projections initialised like any other layer."""
    return {f"d_h = {size}": partial(_rescaling, size) for size in dict.fromkeys(size for size, _ in RESCALED.values())}


def _rescaling(size: int) -> Comparison:
    sides = []
    for name, label in ((name, label) for name, (width, label) in RESCALED.items() if width == size):
        row = result("mt-analysis", name)
        sizes = [f"{stored('magnitudes', f'{name}-0')[when]:,.2f}" for when in ("fresh", "trained")]
        scores: dict[Key, Scores] = {"best loss": best_losses(row), "BLEU En→X": out_of(row), "BLEU X→En": into(row)}
        sides.append(Side(label, scores, tuple(sizes)))
    return Comparison(sides=sides, labels=("rescaling", "weight RMS before", "weight RMS after"), digits=2)


def bodies() -> Tables:
    """Compare linear and non-linear hypernetworks, without and with residual blocks."""
    return {"": _bodies}


def _bodies() -> Comparison:
    rows = {
        "linear": result("mt-analysis", "linear"),
        "non-linear": result("mt-analysis", "nonlinear"),
        "+ residual blocks": result("mt-table", "hyper-33").first(),
    }
    sides = [
        Side(
            name,
            {"best loss": best_losses(row), "BLEU En→X": out_of(row), "BLEU X→En": into(row)},
            (f"{added(row):,}",),
        )
        for name, row in rows.items()
    ]
    return Comparison(sides=sides, labels=("hypernetwork", "added parameters"), base="linear", digits=2)


def masks() -> Tables:
    """Compare inputs of the encoder's and decoder's adapters, on untrained pairs too."""
    return {"": _masks}


def _masks() -> Comparison:
    rows = {
        "source, target; target": result("mt-table", "hyper-33").first(),
        "source, target; target; dropout 0.1": result("mt-analysis", "dropout"),
        "source, target; source, target": result("mt-analysis", "both-both"),
        "source; target": result("mt-analysis", "source-target"),
    }
    sides = []
    for name, row in rows.items():
        ways = {"En→X": out_of, "X→En": into, "untrained, direct": untrained, "untrained, via English": via_english}
        sides.append(Side(name, {f"BLEU {way}": selected(row) for way, selected in ways.items()}))
    return Comparison(sides=sides, labels=("encoder inputs; decoder inputs",), base=sides[0].label)


def swaps() -> Tables:
    """Compare scores with own weights and with the weights of related and unrelated donors."""
    return {name: partial(_swaps, name) for name in ("lang-adapters", "hyper-33", "hyper-100")}


def _swaps(name: str) -> Comparison:
    row = result("mt-table", name).first()
    donated = {"own": row}
    for label, kind in (("related", "related"), ("unrelated", "distant")):
        found = {c: by_donor[DIRECTIONS[kind][_other(c)]] for c, by_donor in row.runs[0]["swaps"].items()}
        donated[label] = Row(row.runs, [first_scores(found)])
    languages = list(DIRECTIONS["related"])
    sides = [
        Side(label, {"BLEU En→X": out_of(some, languages), "BLEU X→En": into(some, languages)})
        for label, some in donated.items()
    ]
    return Comparison(sides=sides, labels=("weights",), base="own")


def split() -> Tables:
    """Compare languages with their two halves, each of half the pairs."""
    return {name: partial(_split, name) for name in ("lang-adapters", "hyper-33")}


def _split(name: str) -> Comparison:
    rows = {"whole": result("mt-table", name).first(), "split": result("mt-analysis", f"split-{name}")}
    names = {"whole": list(HALVES), "split": [half for halves in HALVES.values() for half in halves]}
    sides = [
        Side(label, {"BLEU En→X": out_of(row, names[label]), "BLEU X→En": into(row, names[label])})
        for label, row in rows.items()
    ]
    return Comparison(sides=sides, labels=("languages",), base="whole")


def embeddings() -> Tables:
    """Compare how often the nearest neighbour of a language is in its group."""
    return {"": _embeddings}


def _embeddings() -> Comparison:
    sides = []
    for name in GENERATED:
        row, shares, chances, ps = result("mt-table", name), [], [], []
        for run in row.runs:
            vectors = np.array(list(run["embeddings"].values()))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            share, chance, p = purity(vectors @ vectors.T, [GROUP[language] for language in run["embeddings"]])
            shares.append({"embeddings": Value(100 * share)})
            chances.append(chance)
            ps.append(p)
        scores: dict[Key, Scores] = {"nearest neighbour in the same group, %": [(Row(row.runs, shares), "embeddings")]}
        sides.append(Side(name, scores, (f"{max(chances):.0%}", f"{max(ps):.4f}")))
    return Comparison(sides=sides, labels=("method", "by chance", "p, at most"), digits=0)


def _other(condition: str) -> str:
    (language,) = set(condition.split("/")[1:]) - {ENGLISH}
    return language


TABLES: dict[str, Callable[[], Tables]] = {
    "mt-table": table, "mt-losses": final_losses, "mt-sources": sources, "mt-rescaling": rescaling,
    "mt-bodies": bodies, "mt-masks": masks, "mt-swaps": swaps, "mt-split": split, "mt-embeddings": embeddings,
}  # fmt: skip
