"""Tables of docs/results.md."""

import itertools
from collections.abc import Callable, Sequence

from experiments.read import (
    CORPORA,
    GROUPS,
    SEEN,
    UNSEEN,
    Row,
    Selection,
    by_seed,
    difference,
    few_shot_scores,
    interval,
    layer_rows,
    mean,
    results,
    second,
    select,
    spread,
    swapped,
)
from polyloom.cli.render.tables import markdown

MIXED = ["en", "tr", "wo", "id", "vi", "te"]  # languages labelled for one task in each partition
NEVER = [language for language in GROUPS["all"] if language not in MIXED]
STAGE_LANGUAGES = ["mt", "wo", "bm"]


def tuning() -> str:
    """Show the mean zero-shot score on the tuning languages, by method and learning rate."""
    lines: dict[str, dict[str, str]] = {}
    for name, row in results("tuning").items():
        method, _, size = name.rpartition("-")
        every = [(row, condition) for condition in row.scores[0]]
        lr = row.runs[0]["recipe"]["optim"]["lr"]
        lines.setdefault(method, {})[size] = f"{mean(every):.1f} ({lr:g})"
    sizes = {"low": "low", "mid": "mid", "high": "high", "embeddings": "mid, embeddings 1e-2"}
    rows = [[method, *(by_size.get(size, "") for size in sizes)] for method, by_size in lines.items()]
    return markdown(["method", *sizes.values()], rows)


def transfer() -> str:
    """Compare Hyper-X with other methods on English labels, as in the paper's tables 2 and 3."""
    lines = []
    for setting, method, names in (
        ("English, one task", "full", ["full-pos", "full-ner"]),
        ("", "Hyper-X", ["hyperx-pos", "hyperx-ner"]),
        ("English, both tasks", "full", ["full-multi"]),
        ("", "multilingual", ["multilingual"]),
        ("", "MAD-X", ["madx"]),
        ("", "Hyper-X", ["hyperx-multi"]),
    ):
        rows = [results("transfer")[name] for name in names]
        scores = [spread(select(rows, task, group)) for task in ("pos", "ner") for group in GROUPS.values()]
        lines.append([setting, method, *scores, *_cost(rows)])
    groups = [f"{task} {group}" for task in ("POS", "NER") for group in GROUPS]
    return markdown(["setting", "method", *groups, "trainable", "minutes"], lines)


def mixed() -> str:
    """Compare methods trained on different languages for different tasks, zero-shot conditions only."""
    lines, scored = [], {}
    for method, name in (("full", "full"), ("PSF", "psf"), ("Hyper-X", "hyperx")):
        rows = [results("transfer")[f"{name}-mixed{partition}"] for partition in (1, 2)]
        scored[method] = [select(rows, t, group, zero_shot=True) for group in (MIXED, NEVER) for t in ("pos", "ner")]
        lines.append([method, *map(spread, scored[method]), *_cost(rows)])
    lines.append(["Hyper-X, English only", *_english("hyperx-multi"), "", ""])
    for method in ("full", "PSF"):
        pairs = zip(scored["Hyper-X"], scored[method], strict=True)
        lines.append([f"Hyper-X − {method} [95 %]", *(difference(h, o) if o else "–" for h, o in pairs), "", ""])
    columns = ["POS, other task labelled", "NER, other task labelled", "POS, no labels", "NER, no labels"]
    return markdown(["method", *columns, "trainable", "minutes"], lines)


def _english(name: str) -> list[str]:
    """Show the same conditions of a row trained on English labels only; English itself is left out."""
    row = results("transfer")[name]
    others = [language for language in MIXED if language != "en"]
    return [spread(select(row, task, group)) for group in (others, NEVER) for task in ("pos", "ner")]


def _cost(rows: Sequence[Row]) -> list[str]:
    """Show trainable parameters and minutes of training."""
    parameters = max(sum(row.runs[0]["training"]["parameters"].values()) for row in rows)
    return [f"{parameters / 1e6:.1f}M", f"{sum(row.mean('seconds') for row in rows) / 60:.1f}"]


def languages() -> str:
    """Show every language, with the 95 % interval over sentences for Hyper-X."""
    names = {"full": "full-multi", "multilingual": "multilingual", "MAD-X": "madx", "Hyper-X": "hyperx-multi"}
    lines = []
    for language in ["en", *SEEN, *UNSEEN]:
        line = [f"{CORPORA['names'][language]} ({language})", CORPORA["families"][language]]
        for task in ("pos", "ner"):
            baseline = results("transfer")["hyperx-multi"].runs[0]["baselines"].get(f"{task}/{language}")
            line += [f"{baseline:.1f}" if baseline is not None else "–"] if task == "pos" else []
            for method, name in names.items():
                scored = select(results("transfer")[name], task, [language])
                line.append(f"{mean(scored):.1f}" if scored else "–")
                if method == "Hyper-X" and scored:
                    low, high = interval(scored)
                    line[-1] += f" [{low:.1f}, {high:.1f}]"
        lines.append(line)
    columns = [f"POS {name}" for name in ("majority", *names)] + [f"NER {name}" for name in names]
    return markdown(["language", "family", *columns], lines)


def differences() -> str:
    """Show the main differences of means over languages, with intervals over sentences, and seed by seed."""
    lines = []
    for name, left, right in (
        ("Hyper-X, both tasks − full, both tasks", ["hyperx-multi"], ["full-multi"]),
        ("Hyper-X, both tasks − multilingual", ["hyperx-multi"], ["multilingual"]),
        ("Hyper-X, both tasks − MAD-X", ["hyperx-multi"], ["madx"]),
        ("MAD-X − multilingual", ["madx"], ["multilingual"]),
        ("Hyper-X, one task − full, one task", ["hyperx-pos", "hyperx-ner"], ["full-pos", "full-ner"]),
        ("Hyper-X, both tasks − Hyper-X, one task", ["hyperx-multi"], ["hyperx-pos", "hyperx-ner"]),
    ):
        common = min(len(results("transfer")[row].runs) for row in (*left, *right))
        rows = [[results("transfer")[row].first(common) for row in names] for names in (left, right)]
        for task in ("pos", "ner"):
            for group, languages in GROUPS.items():
                ours, theirs = (select(side, task, languages) for side in rows)
                seeds = ", ".join(f"{value:+.1f}" for value in by_seed(ours) - by_seed(theirs))
                lines.append([name, f"{task.upper()} {group}", difference(ours, theirs), seeds])
                name = ""  # noqa: PLW2901 - named in its first line only
    return markdown(["comparison", "scores", "difference [95 %]", "by seed"], lines)


DONORS = {"related": "related", "peer": "unrelated, same group", "distant": "unrelated, other group"}


def swaps() -> str:
    """Compare scores with own weights and with the weights of related and unrelated donors."""
    lines = []
    for method, name in (("Hyper-X", "hyperx-multi"), ("MAD-X", "madx")):
        for task in ("pos", "ner"):
            for kind, group, languages in (
                ("related", "with a related language", [*CORPORA["related"]]),
                *((kind, group, members) for kind in ("peer", "distant") for group, members in GROUPS.items()),
            ):
                own, other = (select(row, task, languages) for row in swapped(results("transfer")[name], CORPORA[kind]))
                scores = [f"{mean(own):.1f}", f"{mean(other):.1f}", difference(own, other)]
                lines.append([method, task.upper(), group, DONORS[kind], *scores])
    return markdown(
        ["method", "task", "languages", "donor", "own weights", "donor's weights", "own − donor [95 %]"], lines
    )


def length() -> str:
    """Compare 40 and 200 steps of raw text per language: scores of unseen languages, and own minus donor's weights."""
    lines = []
    for method, name in (("multilingual", "multilingual"), ("MAD-X", "madx"), ("Hyper-X", "hyperx-multi")):
        for task in ("pos", "ner"):
            row = results("transfer")[name]
            rows = results("short")[name], row.first()
            less, more = (select(some_row, task, UNSEEN) for some_row in rows)
            line = [method, task.upper(), f"{mean(less):.1f}", f"{mean(more):.1f}", difference(more, less)]
            for some_row in rows:
                own, other = (select(side, task, GROUPS["all"]) for side in swapped(some_row, CORPORA["distant"]))
                line.append(difference(own, other))
            lines.append(line)
    columns = [
        "unseen, 40 steps",
        "unseen, 200 steps",
        "difference [95 %]",
        "own − donor, 40 steps",
        "own − donor, 200 steps",
    ]
    return markdown(["method", "task", *columns], lines)


def conditioning() -> str:
    """Compare Hyper-X at other learning rates, depths and lengths of training, first seed."""
    main, others = results("transfer")["hyperx-multi"], results("conditioning")
    lines = []
    for label, row in (
        ("as in the main table", main.first()),
        ("learning rate of embeddings 1e-3, as of the rest", others["mid"]),
        ("learning rate 3e-3 for everything", others["high"]),
        ("language-specific weights in layers 1–3 only", others["lower"]),
        ("three times as much raw text", others["long"]),
    ):
        line = [label, *(f"{mean(select(row, t, GROUPS[g])):.1f}" for t in ("pos", "ner") for g in ("seen", "unseen"))]
        for task, kind in itertools.product(("pos", "ner"), ("peer", "distant")):
            own, other = (select(side, task, GROUPS["all"]) for side in swapped(row, CORPORA[kind]))
            line.append(difference(own, other))
        lines.append(line)
    groups = [f"{task} {group}" for task in ("POS", "NER") for group in ("seen", "unseen")]
    donors = [f"{task} own − unrelated, {group} group" for task in ("POS", "NER") for group in ("same", "other")]
    return markdown(["Hyper-X", *groups, *donors], lines)


def layers() -> str:
    """Compare tags with a language's own weights in some layers and English weights in the others."""
    lines = []
    for method, run in (("Hyper-X", "hyperx-multi-0"), ("MAD-X", "madx-0")):
        rows = layer_rows(run)
        for group, languages in GROUPS.items():
            base = select(rows["none"], "pos", languages)
            line = [method, group, f"{mean(base):.1f}"]
            sets = ("all", "upper", "lower", "peer")
            lines.append([*line, *(difference(select(rows[s], "pos", languages), base) for s in sets)])
    columns = ["English in all layers", "own in all", "own in 4–6", "own in 1–3", "unrelated in 1–3"]
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
    """Show how training on raw text changes tags, by its settings."""
    lines = []
    for name, settings in STAGE.items():
        row = results("language-stage")[name]
        donors = {"mt": "bm", "wo": "mt", "bm": "mt"}
        own, other = (select(side, "pos", STAGE_LANGUAGES) for side in swapped(row, donors))
        scores = [f"{mean(select(row, 'pos', [language])):.1f}" for language in STAGE_LANGUAGES]
        lines.append([*settings, *scores, difference(own, other)])
    return markdown(["method", "learning rate", "MLM candidates", *STAGE_LANGUAGES, "own − unrelated [95 %]"], lines)


def bilingual() -> str:
    """Compare BAD-X by ratio with MAD-X and the multilingual adapter."""
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
            scored: Selection = [pair for t in targets for pair in select(second(of[t], metric), task, [t])]
            base: Selection = [pair for t in targets for pair in select(second(rows["madx"], metric), task, [t])]
            line += [f"{row.scores[0][c].value:.1f}" for row, c in scored]
            line.append(f"{mean(scored):.1f}" + ("" if name == "madx" else f" ({difference(scored, base)})"))
        lines.append(line)
    columns = [f"{m} {t}" for m in ("POS", "UAS", "LAS") for t in (*targets, "mean (− MAD-X)")]
    return markdown(["method", *columns], lines)


ABLATIONS = {
    "base": "as in the main table, with fewer languages and steps",
    "text-of-seen": "no raw text of unseen languages",
    "no-text": "no raw text at all",
    "temperature-1": "proportional sampling",
    "temperature-5": "temperature 5 (the paper's)",
    "unimax": "UniMax, at most one epoch",
    "embedding-8": "embedding size 8",
    "embedding-256": "embedding size 256",
    "homogeneous": "one dataset per batch",
}


def ablations() -> str:
    """Compare Hyper-X with one setting changed at a time."""
    base = results("ablations")["base"]
    lines = []
    for name, label in ABLATIONS.items():
        row, line = results("ablations")[name], [label]
        for task in ("pos", "ner"):
            for group in ("seen", "unseen"):
                ours, theirs = (select(side, task, GROUPS[group]) for side in (row, base))
                line.append(f"{mean(ours):.1f}" + (f" ({difference(ours, theirs)})" if row is not base else ""))
        training = row.runs[0]["training"]
        lines.append([*line, f"{training['tokens'] / 1e3:.0f}k", f"{training['tokens'] / training['seconds']:.0f}"])
    groups = [f"{task} {group}" for task in ("POS", "NER") for group in ("seen", "unseen")]
    return markdown(["Hyper-X, both tasks", *groups, "tokens", "tokens/s"], lines)


def few_shot() -> str:
    """Show tagging accuracy after few labelled sentences."""
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
