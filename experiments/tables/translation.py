"""Tables of docs/translation-results.md."""

from collections.abc import Callable, Sequence

import numpy as np

from experiments.jobs import DIRECTIONS, ENGLISH, HALVES, OTHERS
from experiments.read import (
    Row,
    Selection,
    difference,
    first_scores,
    mean,
    results,
    second,
    source_losses,
    spread,
    stored,
)
from polyloom.cli.render.tables import markdown
from polyloom.metrics.score import Array
from polyloom.probe.languages import purity

METHODS = ("dense", "lang-adapters", "pair-adapters", "hyper-17", "hyper-33", "hyper-100")
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


def steps_to(row: Row, loss: float) -> str:
    """Show the steps until the mean validation loss of all seeds is at most this, or a dash."""
    curve = losses(row).mean(0)
    every = row.runs[0]["recipe"]["train"]["evaluate_every"]
    reached = np.flatnonzero(curve <= loss)
    return str(every * (int(reached[0]) + 1)) if len(reached) else "–"


def table() -> str:
    """Compare methods: parameters, scores and losses."""
    rows = {name: results("mt-table")[name] for name in METHODS}
    best = float(losses(rows["lang-adapters"]).mean(0).min())
    lines = []
    for name, row in rows.items():
        share = f"{100 * added(row) / added(rows['lang-adapters']):.0f} %"
        scores = [spread(ways(row, level)) for ways in (out_of, into) for level in (OTHERS, *LEVELS.values())]
        chrf = [f"{mean(ways(second(row, 'chrf'))):.1f}" for ways in (out_of, into)]
        loss = f"{losses(row).min(1).mean():.3f}"
        lines.append([name, f"{added(row):,}", share, *scores, *chrf, loss, steps_to(row, best)])
    groups = [f"BLEU {way} {level}" for way in ("En→X", "X→En") for level in ("all", *LEVELS)]
    tail = ["chrF En→X", "chrF X→En", "loss", "steps to the best loss of lang-adapters"]
    return markdown(["method", "added parameters", "relative to lang-adapters", *groups, *tail], lines)


def differences() -> str:
    """Show differences with intervals over sentences."""
    lines = []
    for left, right in (
        *((name, "dense") for name in METHODS[1:]),
        *((name, "lang-adapters") for name in METHODS[3:]),
        ("pair-adapters", "lang-adapters"),
    ):
        rows = [results("mt-table")[name] for name in (left, right)]
        shown = [difference(*(ways(row) for row in rows)) for ways in (out_of, into)]
        low = difference(*(both(row, LEVELS["low"]) for row in rows))
        lines.append([f"{left} − {right}", *shown, low])
    return markdown(["BLEU [95 %]", "En→X", "X→En", "low, both ways"], lines)


def sources() -> str:
    """Compare losses with the right and with a wrong source."""
    lines = []
    for name in METHODS:
        row, shown = results("mt-table")[name], []
        for ways in (out_of, into):
            by_direction = [source_losses(f"{name}-{run['seed']}")[c] for run in row.runs for _, c in ways(row)]
            own, other = (np.mean([loss[key] for loss in by_direction]) for key in ("own", "other"))
            shown += [f"{own:.2f}", f"{other:.2f}", f"{other - own:.2f}"]
        lines.append([name, *shown])
    columns = [f"{way} {what}" for way in ("En→X", "X→En") for what in ("loss", "wrong source", "difference")]
    return markdown(["method", *columns], lines)


def rescaling() -> str:
    """Compare widths with and without rescaling, output projections initialised like any other layer."""
    lines = []
    for name, (size, label) in RESCALED.items():
        row = results("mt-analysis")[name]
        sizes = [f"{stored('magnitudes', f'{name}-0')[when]:,.2f}" for when in ("fresh", "trained")]
        shown = [f"{losses(row).min():.3f}", *(f"{mean(ways(row)):.1f}" for ways in (out_of, into))]
        lines.append([str(size), label, *sizes, *shown])
    measured = ["weight RMS before", "weight RMS after", "best loss", "BLEU En→X", "BLEU X→En"]
    return markdown(["d_h", "rescaling", *measured], lines)


def bodies() -> str:
    """Compare linear and non-linear hypernetworks, without and with residual blocks."""
    rows = {
        "linear": results("mt-analysis")["linear"],
        "non-linear": results("mt-analysis")["nonlinear"],
        "+ residual blocks": results("mt-table")["hyper-33"].first(),
    }
    lines = [
        [name, f"{added(row):,}", f"{losses(row).min():.3f}", *(f"{mean(ways(row)):.1f}" for ways in (out_of, into))]
        for name, row in rows.items()
    ]
    return markdown(["hypernetwork", "added parameters", "best loss", "BLEU En→X", "BLEU X→En"], lines)


def masks() -> str:
    """Compare inputs of the encoder's and decoder's adapters, on untrained pairs too."""
    analysis, first = results("mt-analysis"), results("mt-table")
    rows = {
        ("hyper-33", "source, target", "target", ""): first["hyper-33"].first(),
        ("hyper-33", "source, target", "target", "0.1"): analysis["dropout"],
        ("hyper-33", "source, target", "source, target", ""): analysis["both-both"],
        ("hyper-33", "source", "target", ""): analysis["source-target"],
        ("lang-adapters", "source", "target", ""): first["lang-adapters"].first(),
        ("dense", "–", "–", ""): first["dense"].first(),
    }
    base, lines = rows[("hyper-33", "source, target", "target", "")], []
    for name, row in rows.items():
        line = list(name)
        for ways in (out_of, into, untrained, via_english):
            than_base = f" ({difference(ways(row), ways(base))})" if row is not base else ""
            line.append(f"{mean(ways(row)):.1f}{than_base}")
        line += [f"{mean(untrained(second(row, 'chrf', key))):.1f}" for key in ("results", "pivot")]
        lines.append(line)
    columns = ["BLEU En→X", "BLEU X→En", "BLEU direct", "BLEU via English", "chrF direct", "chrF via English"]
    return markdown(["method", "encoder inputs", "decoder inputs", "dropout", *columns], lines)


def swaps() -> str:
    """Compare scores with own weights and with the weights of related and unrelated donors."""
    lines = []
    for name in ("lang-adapters", "hyper-33", "hyper-100"):
        row = results("mt-table")[name].first()
        for way, ways in (("En→X", out_of), ("X→En", into)):
            own = ways(row, list(DIRECTIONS["related"]))
            shown = [f"{mean(own):.1f}"]
            for kind in ("related", "distant"):
                donors = {c: DIRECTIONS[kind][_other(c)] for _, c in own}
                swapped = {c: row.runs[0]["swaps"][c][donor] for c, donor in donors.items()}
                shown.append(difference([(Row(row.runs, [first_scores(swapped)]), c) for _, c in own], own))
            lines.append([name, way, *shown])
    return markdown(["method", "", "BLEU, own weights", "related − own [95 %]", "unrelated − own [95 %]"], lines)


def split() -> str:
    """Compare languages with their two halves, each of half the pairs."""
    lines = []
    for name in ("lang-adapters", "hyper-33"):
        whole, halves = results("mt-table")[name].first(), results("mt-analysis")[f"split-{name}"]
        for way, ways in (("En→X", out_of), ("X→En", into)):
            names = [half for language in HALVES for half in HALVES[language]]
            before, after = mean(ways(whole, list(HALVES))), mean(ways(halves, names))
            lines.append([name, way, f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"])
    return markdown(["method", "", "BLEU whole", "BLEU split", "difference"], lines)


def embeddings() -> str:
    """Show how often the nearest neighbour of a language is in its group."""
    lines = []
    for name in METHODS[3:]:
        for run in results("mt-table")[name].runs:
            vectors = np.array(list(run["embeddings"].values()))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            share, chance, p = purity(vectors @ vectors.T, [GROUP[language] for language in run["embeddings"]])
            lines.append([name, str(run["seed"]), f"{share:.0%}", f"{chance:.0%}", f"{p:.4f}"])
    return markdown(["method", "seed", "nearest neighbour in the same group", "by chance", "p"], lines)


def _other(condition: str) -> str:
    (language,) = set(condition.split("/")[1:]) - {ENGLISH}
    return language


TABLES: dict[str, Callable[[], str]] = {
    "mt-table": table, "mt-differences": differences, "mt-sources": sources, "mt-rescaling": rescaling,
    "mt-bodies": bodies, "mt-masks": masks, "mt-swaps": swaps, "mt-split": split, "mt-embeddings": embeddings,
}  # fmt: skip
