"""Draw tables and figures from the raw results into the documents: ``python experiments/draw.py``.

Tables replace what stands between ``<!-- name -->`` and ``<!-- end -->`` in docs/results.md, translation-results.md and
growing-results.md; figures go to docs/figures. With ``--check`` nothing is written, and it fails where a table is not
what the results say.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Sequence

import numpy as np
import tables_growth
import tables_mt
from job import HERE
from read import (
    CORPORA,
    GROUPS,
    SEEN,
    UNSEEN,
    Cells,
    Row,
    by_seed,
    cells,
    difference,
    few_shot_scores,
    layer_rows,
    mean,
    resampled,
    results,
    second,
    spread,
    swapped,
)  # fmt: skip

from polyloom.cli.render.tables import markdown

DOCS = HERE.parent / "docs"
MIXED = ["en", "tr", "wo", "id", "vi", "te"]  # labelled for one task in each partition
LEARNT = ["mt", "wo", "bm"]
NEVER = [language for language in GROUPS["all"] if language not in MIXED]


def tuning() -> str:
    """Mean of the zero-shot scores for tuning, by method and learning rate."""
    lines: dict[str, dict[str, str]] = {}
    for name, row in results("tuning").items():
        method, _, size = name.rpartition("-")
        chosen = [(row, condition) for condition in row.scores[0]]
        lr = row.runs[0]["recipe"]["optim"]["lr"]
        lines.setdefault(method, {})[size] = f"{mean(chosen):.1f} ({lr:g})"
    sizes = {"low": "low", "mid": "mid", "high": "high", "embeddings": "mid, embeddings 1e-2"}
    return markdown(
        ["method", *sizes.values()], [[m, *(found.get(s, "") for s in sizes)] for m, found in lines.items()]
    )


def transfer() -> str:
    """Hyper-X and its rivals in three settings, as in the paper's tables 2 and 3."""
    lines = []
    for setting, method, names in (
        ("English, one task", "full", ["full-pos", "full-ner"]),
        ("", "Hyper-X", ["hyperx-pos", "hyperx-ner"]),
        ("English, both", "full", ["full-multi"]),
        ("", "multilingual", ["multilingual"]),
        ("", "MAD-X", ["madx"]),
        ("", "Hyper-X", ["hyperx-multi"]),
    ):
        rows = [results("transfer")[name] for name in names]
        scores = [spread(cells(rows, task, group)) for task in ("pos", "ner") for group in GROUPS.values()]
        lines.append([setting, method, *scores, *_cost(rows)])
    groups = [f"{task} {group}" for task in ("POS", "NER") for group in GROUPS]
    return markdown(["setting", "method", *groups, "trained", "minutes"], lines)


def mixed() -> str:
    """Other languages for other tasks: cells that were not learnt from."""
    lines, chosen = [], {}
    for method, name in (("full", "full"), ("PSF", "psf"), ("Hyper-X", "hyperx")):
        rows = [results("transfer")[f"{name}-mixed{partition}"] for partition in (1, 2)]
        chosen[method] = [cells(rows, t, group, zero_shot=True) for group in (MIXED, NEVER) for t in ("pos", "ner")]
        lines.append([method, *map(spread, chosen[method]), *_cost(rows)])
    lines.append(["Hyper-X, English only", *_english("hyperx-multi"), "", ""])
    for method in ("full", "PSF"):
        pairs = zip(chosen["Hyper-X"], chosen[method], strict=True)
        lines.append([f"Hyper-X − {method} [95 %]", *(difference(o, t) if t else "–" for o, t in pairs), "", ""])
    columns = ["POS, other task labelled", "NER, other task labelled", "POS, nothing labelled", "NER, nothing labelled"]
    return markdown(["method", *columns, "trained", "minutes"], lines)


def _english(name: str) -> list[str]:
    """The same cells of a row that has learnt from English only, of which English itself is no zero-shot cell."""
    row = results("transfer")[name]
    others = [language for language in MIXED if language != "en"]
    return [spread(cells(row, task, group)) for group in (others, NEVER) for task in ("pos", "ner")]


def _cost(rows: Sequence[Row]) -> list[str]:
    parameters = max(sum(row.runs[0]["training"]["parameters"].values()) for row in rows)
    return [f"{parameters / 1e6:.1f}M", f"{sum(row.mean('seconds') for row in rows) / 60:.1f}"]


def languages() -> str:
    """Every language, with the 95 % interval over sentences of the headline row."""
    names = {"full": "full-multi", "multilingual": "multilingual", "MAD-X": "madx", "Hyper-X": "hyperx-multi"}
    lines = []
    for language in ["en", *SEEN, *UNSEEN]:
        line = [f"{CORPORA['names'][language]} ({language})", CORPORA["families"][language]]
        for task in ("pos", "ner"):
            baseline = results("transfer")["hyperx-multi"].runs[0]["baselines"].get(f"{task}/{language}")
            line += [f"{baseline:.1f}" if baseline is not None else "–"] if task == "pos" else []
            for method, name in names.items():
                chosen = cells(results("transfer")[name], task, [language])
                low, high = np.quantile(resampled(chosen), [0.025, 0.975]) if chosen else (0, 0)
                interval = f" [{low:.1f}, {high:.1f}]" if method == "Hyper-X" and chosen else ""
                line.append(f"{mean(chosen):.1f}{interval}" if chosen else "–")
        lines.append(line)
    columns = [f"POS {name}" for name in ("majority", *names)] + [f"NER {name}" for name in names]
    return markdown(["language", "family", *columns], lines)


def differences() -> str:
    """Headline comparisons: differences of means over languages, with intervals over sentences, seed by seed."""
    lines = []
    for name, one, other in (
        ("Hyper-X, both tasks − full, both tasks", ["hyperx-multi"], ["full-multi"]),
        ("Hyper-X, both tasks − multilingual", ["hyperx-multi"], ["multilingual"]),
        ("Hyper-X, both tasks − MAD-X", ["hyperx-multi"], ["madx"]),
        ("MAD-X − multilingual", ["madx"], ["multilingual"]),
        ("Hyper-X, one task − full, one task", ["hyperx-pos", "hyperx-ner"], ["full-pos", "full-ner"]),
        ("Hyper-X, both tasks − Hyper-X, one task", ["hyperx-multi"], ["hyperx-pos", "hyperx-ner"]),
    ):
        common = min(len(results("transfer")[row].runs) for row in (*one, *other))
        rows = [[results("transfer")[row].first(common) for row in names] for names in (one, other)]
        for task in ("pos", "ner"):
            for group, chosen in GROUPS.items():
                ours, theirs = (cells(some, task, chosen) for some in rows)
                seeds = ", ".join(f"{value:+.1f}" for value in by_seed(ours) - by_seed(theirs))
                lines.append([name, f"{task.upper()} {group}", difference(ours, theirs), seeds])
                name = ""  # noqa: PLW2901 - said once
    return markdown(["comparison", "of", "difference [95 %]", "by seed"], lines)


DONORS = {"related": "a relative", "peer": "a stranger of their group", "distant": "a stranger of the other group"}


def swaps() -> str:
    """Scores with the right, a related and a distant language's weights."""
    lines = []
    for method, name in (("Hyper-X", "hyperx-multi"), ("MAD-X", "madx")):
        for task in ("pos", "ner"):
            for kind, group, chosen in (
                ("related", "that have a relative", [*CORPORA["related"]]),
                *((kind, group, chosen) for kind in ("peer", "distant") for group, chosen in GROUPS.items()),
            ):
                right, wrong = (cells(row, task, chosen) for row in swapped(results("transfer")[name], CORPORA[kind]))
                scores = [f"{mean(right):.1f}", f"{mean(wrong):.1f}", difference(right, wrong)]
                lines.append([method, task.upper(), group, DONORS[kind], *scores])
    return markdown(["method", "task", "languages", "weights of", "own", "swapped", "own − swapped [95 %]"], lines)


def length() -> str:
    """What more raw text changes: scores of unseen languages, and what the weights of a distant language cost."""
    lines = []
    for method, name in (("multilingual", "multilingual"), ("MAD-X", "madx"), ("Hyper-X", "hyperx-multi")):
        for task in ("pos", "ner"):
            row = results("transfer")[name]
            rows = results("short")[name], row.first()
            less, more = (cells(some, task, UNSEEN) for some in rows)
            line = [method, task.upper(), f"{mean(less):.1f}", f"{mean(more):.1f}", difference(more, less)]
            for some in rows:
                own, wrong = (cells(of, task, GROUPS["all"]) for of in swapped(some, CORPORA["distant"]))
                line.append(difference(own, wrong))
            lines.append(line)
    columns = ["unseen, 40 steps", "unseen, 200 steps", "difference [95 %]", "own − distant, 40", "own − distant, 200"]
    return markdown(["method", "task", *columns], lines)


def conditioning() -> str:
    """Hyper-X at other learning rates, depths and lengths; the first seed of each."""
    main, others = results("transfer")["hyperx-multi"], results("conditioning")
    lines = []
    for label, row in (
        ("as in the main table", main.first()),
        ("embeddings learn at 1e-3, as the rest", others["mid"]),
        ("everything learns at 3e-3", others["high"]),
        ("only layers 1–3 know the language", others["lower"]),
        ("three times as much raw text", others["long"]),
    ):
        line = [label, *(f"{mean(cells(row, t, GROUPS[g])):.1f}" for t in ("pos", "ner") for g in ("seen", "unseen"))]
        for task, kind in itertools.product(("pos", "ner"), ("peer", "distant")):
            own, wrong = (cells(some, task, GROUPS["all"]) for some in swapped(row, CORPORA[kind]))
            line.append(difference(own, wrong))
        lines.append(line)
    groups = [f"{task} {group}" for task in ("POS", "NER") for group in ("seen", "unseen")]
    donors = [f"{task} own − stranger, {group} group" for task in ("POS", "NER") for group in ("same", "other")]
    return markdown(["Hyper-X", *groups, *donors], lines)


def layers() -> str:
    """Tags with a language's own weights in some layers, English's in the others."""
    lines = []
    for method, run in (("Hyper-X", "hyperx-multi-0"), ("MAD-X", "madx-0")):
        rows = layer_rows(run)
        for group, chosen in GROUPS.items():
            base = cells(rows["none"], "pos", chosen)
            line = [method, group, f"{mean(base):.1f}"]
            sets = ("all", "upper", "lower", "peer")
            lines.append([*line, *(difference(cells(rows[s], "pos", chosen), base) for s in sets)])
    columns = ["English's everywhere", "own everywhere", "own in 4–6", "own in 1–3", "a stranger's in 1–3"]
    return markdown(["method", "languages", *columns], lines)


STAGE = {
    "low": ("MAD-X", "3e-4", "corpus"),
    "mid": ("MAD-X", "1e-3", "corpus"),
    "high": ("MAD-X", "3e-3", "corpus"),
    "mid-full": ("MAD-X", "1e-3", "all"),
    "mid-plain": ("MAD-X without invertible adapters", "1e-3", "corpus"),
    "hyperx-low": ("Hyper-X", "3e-4", "corpus"),
    "hyperx-mid": ("Hyper-X", "1e-3", "corpus"),
    "hyperx-embeddings": ("Hyper-X", "1e-3, embeddings 1e-2", "corpus"),
    "hyperx-warm": ("Hyper-X", "2e-3, 200 steps of warm-up", "corpus"),
}


def language_stage() -> str:
    """What raw text does to tags, by how it is learnt."""
    lines = []
    for name, settings in STAGE.items():
        row = results("language-stage")[name]
        own, wrong = (cells(some, "pos", LEARNT) for some in swapped(row, {"mt": "bm", "wo": "mt", "bm": "mt"}))
        scores = [f"{mean(cells(row, 'pos', [language])):.1f}" for language in LEARNT]
        lines.append([*settings, *scores, difference(own, wrong)])
    return markdown(["method", "learning rate", "choice of pieces", *LEARNT, "own − distant [95 %]"], lines)


def bilingual() -> str:
    """BAD-X by ratio, against MAD-X and the multilingual adapter."""
    rows, targets = results("bilingual"), ["mt", "wo", "myv", "hsb"]
    lines = []
    for method, name in (
        ("multilingual", "multilingual"),
        ("MAD-X", "madx"),
        *((f"BAD-X {r[0]}:{r[1]}", f"badx-*-{r}") for r in ("11", "51", "12")),
    ):
        of = {target: rows[name.replace("*", target)] for target in targets}
        line = [method]
        for task, metric in (("pos", "accuracy"), ("dep", "uas"), ("dep", "las")):
            chosen: Cells = [cell for t in targets for cell in cells(second(of[t], metric), task, [t])]
            base: Cells = [cell for t in targets for cell in cells(second(rows["madx"], metric), task, [t])]
            line += [f"{score.scores[0][c].value:.1f}" for score, c in chosen]
            line.append(f"{mean(chosen):.1f}" + ("" if name == "madx" else f" ({difference(chosen, base)})"))
        lines.append(line)
    columns = [f"{m} {t}" for m in ("POS", "UAS", "LAS") for t in (*targets, "mean (− MAD-X)")]
    return markdown(["method", *columns], lines)


ABLATIONS = {
    "base": "as in the main table, but for fewer languages and steps",
    "text-of-seen": "no raw text of unseen languages",
    "no-text": "no raw text at all",
    "temperature-1": "proportional sampling",
    "temperature-5": "temperature 5 (the paper's)",
    "unimax": "UniMax, one pass at most",
    "embedding-8": "embeddings of 8",
    "embedding-256": "embeddings of 256",
    "homogeneous": "one cell in every batch",
}


def ablations() -> str:
    """One thing changed at a time."""
    base = results("ablations")["base"]
    lines = []
    for name, label in ABLATIONS.items():
        if name not in results("ablations"):
            lines.append([label, "*not run yet*"])
            continue
        row, line = results("ablations")[name], [label]
        for task in ("pos", "ner"):
            for group in ("seen", "unseen"):
                ours, theirs = (cells(some, task, GROUPS[group]) for some in (row, base))
                line.append(f"{mean(ours):.1f}" + (f" ({difference(ours, theirs)})" if row is not base else ""))
        steps = row.runs[0]["training"]
        lines.append([*line, f"{steps['tokens'] / 1e3:.0f}k", f"{steps['tokens'] / steps['seconds']:.0f}"])
    groups = [f"{task} {group}" for task in ("POS", "NER") for group in ("seen", "unseen")]
    return markdown(["Hyper-X, both tasks", *groups, "tokens", "tokens/s"], lines)


def few_shot() -> str:
    """Tagging after few examples."""
    lines = [
        [label, f"{CORPORA['names'][language]} ({language})", *(f"{v:.1f}" for v in few_shot_scores(start, language))]
        for label, start in (("Hyper-X", "hyperx-multi"), ("MAD-X", "madx"))
        for language in ("mt", "myv", "wo", "te")
    ]
    return markdown(["method", "language", "0", "5", "10", "20", "50"], lines)


TABLES: dict[str, Callable[[], str]] = {
    "tuning": tuning, "transfer": transfer, "mixed": mixed, "languages": languages, "differences": differences,
    "swaps": swaps, "conditioning": conditioning, "layers": layers, "length": length,
    "language-stage": language_stage, "bilingual": bilingual, "ablations": ablations, "few-shot": few_shot,
}  # fmt: skip


def fill(text: str, tables: dict[str, str]) -> str:
    """The page with its tables."""
    for name, table in tables.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, found = re.subn(pattern, lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
        assert found == 1, f"{found} places for the table {name}"
    return text


def tried(table: Callable[[], str]) -> str:
    """A table, or what it lacks."""
    try:
        return table()
    except KeyError as missing:
        return f"*Not run yet: {missing.args[0]}.*\n"


def main() -> None:
    """Fill the page, or check that it is filled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where tables are out of date")
    parser.add_argument("--show", metavar="TABLE", help="print one table")
    options = parser.parse_args()
    if options.show:
        sys.stdout.write((TABLES | tables_mt.TABLES | tables_growth.TABLES)[options.show]())
        return
    pages = {"results": TABLES, "translation-results": tables_mt.TABLES, "growing-results": tables_growth.TABLES}
    for page, tables in ((DOCS / f"{name}.md", tables) for name, tables in pages.items()):
        text = page.read_text(encoding="utf-8")
        drawn = fill(text, {name: tried(table) for name, table in tables.items()})
        if not options.check:
            page.write_text(drawn, encoding="utf-8")
        elif drawn != text:
            sys.exit(f"{page}: tables are not what the results say. Run python experiments/draw.py")
    if not options.check:
        from figures import draw_all  # noqa: PLC0415 - only those who draw need matplotlib

        draw_all(DOCS / "figures")


if __name__ == "__main__":
    main()
