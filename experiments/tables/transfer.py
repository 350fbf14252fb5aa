"""Tables of docs/results.md."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from experiments.comparison import Comparison, Key, Scores, Side, Tables
from experiments.read import (
    CORPORA,
    GROUPS,
    UNSEEN,
    Row,
    Selection,
    few_shot_rows,
    layer_rows,
    result,
    results,
    second,
    select,
    swapped,
)

LABELS = {  # the partitions of the mixed setting: which tasks have labels in which languages
    1: {"pos": ["en", "tr", "wo"], "ner": ["id", "vi", "te"]},
    2: {"pos": ["id", "vi", "te"], "ner": ["en", "tr", "wo"]},
}
MIXED = sorted({language for partition in LABELS.values() for some in partition.values() for language in some})
STAGE_LANGUAGES = ["mt", "wo", "bm"]
TASKS = ("pos", "ner")
DONORS = {"related": "related", "peer": "unrelated, same group", "distant": "unrelated, other group"}


def tuning() -> Tables:
    """Compare the learning rates of each method by the mean zero-shot score on the tuning languages."""
    sizes = {"low": "low", "mid": "mid", "high": "high", "embeddings": "mid, embeddings 1e-2"}
    methods = dict.fromkeys(name.rpartition("-")[0] for name in results("tuning"))
    return {method: partial(_rates, method, sizes) for method in methods}


def _rates(method: str, sizes: Mapping[str, str]) -> Comparison:
    rows = {label: results("tuning").get(f"{method}-{size}") for size, label in sizes.items()}
    sides = [
        Side(label, {"mean": [(row, c) for c in row.scores[0]]}, (f"{row.runs[0]['recipe']['optim']['lr']:g}",))
        for label, row in rows.items()
        if row is not None
    ]
    return Comparison(sides=sides, labels=("rate", "learning rate"))


def transfer() -> Tables:
    """Compare methods trained on English labels, as in the Hyper-X paper's tables 2 and 3."""
    one = {"full": ["full-pos", "full-ner"], "Hyper-X": ["hyperx-pos", "hyperx-ner"]}
    both = {"full": ["full-multi"], "multilingual": ["multilingual"], "MAD-X": ["madx"], "Hyper-X": ["hyperx-multi"]}
    return {"English, one task": partial(_english, one), "English, both tasks": partial(_english, both)}


def _english(names: Mapping[str, Sequence[str]]) -> Comparison:
    sides = [
        Side(method, _by_group([result("transfer", row).first() for row in rows])) for method, rows in names.items()
    ]
    return Comparison(sides=sides, labels=("method",), base="full")


def _by_group(rows: Row | Sequence[Row], groups: Iterable[str] = tuple(GROUPS)) -> dict[Key, Scores]:
    """Select the languages of each task and group."""
    return {f"{task.upper()} {group}": select(rows, task, GROUPS[group]) for task in TASKS for group in groups}


def mixed() -> Tables:
    """Compare methods, and labels, if different languages have labels for different tasks: zero-shot conditions only.

    A condition of a language with labels of the other task is in one partition, all others are in both.
    """
    methods = {"full": "full", "PSF": "psf", "Hyper-X": "hyperx"}
    return {"Methods": partial(_mixed_methods, methods)} | {
        f"{method}: labels of six languages, or of English": partial(_mixed_labels, methods[method])
        for method in ("Hyper-X", "full")
    }


def _mixed_methods(methods: Mapping[str, str]) -> Comparison:
    sides = [Side(method, mixed_scores([f"{row}-mixed{n}" for n in LABELS])) for method, row in methods.items()]
    return Comparison(sides=sides, labels=("method",), base="full")


def _mixed_labels(method: str) -> Comparison:
    """Compare labels of several languages with labels of English only; English itself is scored in neither."""
    sides = [
        Side("English, both tasks", mixed_scores([f"{method}-multi"] * 2, without="en")),
        Side("six languages, one task each", mixed_scores([f"{method}-mixed{n}" for n in LABELS], without="en")),
    ]
    return Comparison(sides=sides, labels=("labels",), base="English, both tasks")


def mixed_scores(names: Sequence[str], without: str = "") -> dict[Key, Scores]:
    """Select the zero-shot conditions of both partitions; the names are those of the partitions' rows."""
    rows = dict(zip(LABELS, (result("transfer", name).first() for name in names), strict=True))
    columns: dict[Key, Scores] = {}
    for label, chosen in (("other task labelled", MIXED), ("no labels", [x for x in GROUPS["all"] if x not in MIXED])):
        for task in TASKS:
            columns[f"{task.upper()}, {label}"] = [
                pair
                for number, row in rows.items()
                for pair in select(row, task, [x for x in chosen if x not in (*LABELS[number][task], without)])
            ]
    return columns


def swaps() -> Tables:
    """Compare own weights with the weights of related and unrelated donors."""
    return {method: partial(_swaps, row) for method, row in (("Hyper-X", "hyperx-multi"), ("MAD-X", "madx"))}


def _swaps(name: str) -> Comparison:
    own: dict[Key, Scores] = {}
    other: dict[Key, Scores] = {}
    for task in TASKS:
        for kind, group, languages in (
            ("related", "with a related language", [*CORPORA["related"]]),
            *((kind, group, members) for kind in ("peer", "distant") for group, members in GROUPS.items()),
        ):
            key = task.upper(), group, DONORS[kind]
            own[key], other[key] = (
                select(row, task, languages) for row in swapped(result("transfer", name), CORPORA[kind])
            )
    sides = [Side("own weights", own), Side("donor's weights (− own)", other)]
    return Comparison(sides=sides, labels=("task", "languages", "donor"), base="own weights", across=True)


def length() -> Tables:
    """Compare 40 and 200 steps of raw text per language."""
    methods = {"multilingual": "multilingual", "MAD-X": "madx", "Hyper-X": "hyperx-multi"}
    return {method: partial(_length, row) for method, row in methods.items()}


def _length(name: str) -> Comparison:
    rows = {"40 steps": result("short", name), "200 steps": result("transfer", name).first()}
    sides = [Side(label, {task.upper(): select(row, task, UNSEEN) for task in TASKS}) for label, row in rows.items()]
    return Comparison(sides=sides, labels=("raw text",), base="40 steps")


def conditioning() -> Tables:
    """Compare Hyper-X at other learning rates, depths and lengths of training, first seed."""
    return {"": _conditioning}


def _conditioning() -> Comparison:
    rows = {
        "main settings": result("transfer", "hyperx-multi").first(),
        "learning rate of embeddings 1e-3, as of the rest": result("conditioning", "mid"),
        "learning rate 3e-3 for everything": result("conditioning", "high"),
        "language-specific weights in layers 1–3 only": result("conditioning", "lower"),
        "three times as much raw text": result("conditioning", "long"),
    }
    sides = [Side(label, _by_group(row, ("seen", "unseen")) | _own_minus_donor(row)) for label, row in rows.items()]
    return Comparison(sides=sides, labels=("Hyper-X",))


def _own_minus_donor(row: Row) -> dict[Key, Scores]:
    """Subtract scores with an unrelated donor's weights from those with own weights."""
    columns: dict[Key, Scores] = {}
    for task in TASKS:
        for kind, group in (("peer", "same"), ("distant", "other")):
            own, other = (select(side, task, GROUPS["all"]) for side in swapped(row, CORPORA[kind]))
            columns[f"{task.upper()} own − unrelated, {group} group"] = own, other
    return columns


def layers() -> Tables:
    """Compare tags with a language's own weights in some layers and English weights in the others."""
    return {method: partial(_layers, run) for method, run in (("Hyper-X", "hyperx-multi-0"), ("MAD-X", "madx-0"))}


def _layers(run: str) -> Comparison:
    names = {
        "none": "English in all layers", "all": "own in all", "upper": "own in 4–6", "lower": "own in 1–3",
        "peer": "unrelated in 1–3, English in 4–6",
    }  # fmt: skip
    rows = layer_rows(run)
    sides = [
        Side(label, {group: select(rows[name], "pos", members) for group, members in GROUPS.items()})
        for name, label in names.items()
    ]
    return Comparison(sides=sides, labels=("weights",), base="English in all layers")


STAGE = {
    "MAD-X": {
        "low": ("3e-4", "corpus"),
        "mid": ("1e-3", "corpus"),
        "high": ("3e-3", "corpus"),
        "mid-full": ("1e-3", "all"),
        "mid-plain": ("1e-3, without invertible adapters", "corpus"),
    },
    "Hyper-X": {
        "hyperx-low": ("3e-4", "corpus"),
        "hyperx-mid": ("1e-3", "corpus"),
        "hyperx-embeddings": ("1e-3, embeddings 1e-2", "corpus"),
        "hyperx-warm": ("2e-3, 200 steps of warm-up", "corpus"),
    },
}


def language_stage() -> Tables:
    """Compare settings of training on raw text by the tags after it."""
    return {method: partial(_language_stage, rows) for method, rows in STAGE.items()}


def _language_stage(rows: Mapping[str, tuple[str, str]]) -> Comparison:
    sides = []
    for name, (label, candidates) in rows.items():
        row = result("language-stage", name).first()
        scores: dict[Key, Scores] = {language: select(row, "pos", [language]) for language in STAGE_LANGUAGES}
        donors = {"mt": "bm", "wo": "mt", "bm": "mt"}
        own, other = (select(side, "pos", STAGE_LANGUAGES) for side in swapped(row, donors))
        sides.append(Side(f"{label}, {candidates}", scores | {"own − unrelated [95 %]": (own, other)}))
    return Comparison(sides=sides, labels=("learning rate, MLM candidates",))


def bilingual() -> Tables:
    """Compare BAD-X by ratio, MAD-X with the multilingual adapter, and all of them."""
    ratios = {f"BAD-X {r[0]}:{r[1]}": f"badx-*-{r}" for r in ("11", "51", "12")}
    shared = {"MAD-X": "madx", "multilingual": "multilingual"}
    return {
        "BAD-X": partial(_bilingual, ratios),
        "MAD-X and one adapter for all languages": partial(_bilingual, shared),
        "BAD-X and MAD-X": partial(_bilingual, shared | ratios),
    }


def _bilingual(names: Mapping[str, str]) -> Comparison:
    targets, sides = ["mt", "wo", "myv", "hsb"], []
    for label, name in names.items():
        rows = {target: result("bilingual", name.replace("*", target)) for target in targets}
        scores: dict[Key, Scores] = {}
        for task, metric in (("pos", "accuracy"), ("dep", "uas"), ("dep", "las")):
            every: Selection = [pair for t in targets for pair in select(second(rows[t], metric), task, [t])]
            title = "POS" if task == "pos" else metric.upper()
            scores |= {f"{title} {target}": [pair] for target, pair in zip(targets, every, strict=True)}
            scores[f"{title} mean"] = every
        sides.append(Side(label, scores))
    return Comparison(sides=sides, labels=("score",), base=next(iter(names)), across=True)


ABLATIONS = {
    "base": "main settings, with fewer languages and steps",
    "text-of-seen": "no raw text of unseen languages",
    "temperature-1": "proportional sampling",
    "temperature-5": "temperature 5 (the paper's)",
    "unimax": "UniMax, at most one epoch",
    "embedding-8": "embedding size 8",
    "embedding-256": "embedding size 256",
}
HOMOGENEOUS = {"homogeneous": "raw text of all languages", "no-text": "no raw text at all"}


def ablations() -> Tables:
    """Compare Hyper-X with one setting changed at a time, by the datasets in a batch."""
    return {
        "Four datasets per batch": partial(_ablations, ABLATIONS),
        "One dataset per batch": partial(_ablations, HOMOGENEOUS),
        "One dataset per batch and four": partial(
            _ablations, {"base": "four", "homogeneous": "one", "no-text": "one, no raw text"}
        ),
    }


def _ablations(names: Mapping[str, str]) -> Comparison:
    sides = []
    for name, label in names.items():
        row = result("ablations", name)
        tokens = f"{row.runs[0]['training']['tokens'] / 1e3:.0f}k"
        sides.append(Side(label, _by_group(row, ("seen", "unseen")), (tokens,)))
    return Comparison(sides=sides, labels=("Hyper-X, both tasks", "tokens"), base=sides[0].label)


def few_shot() -> Tables:
    """Compare tagging accuracy after few labelled sentences."""
    return {label: partial(_few_shot, start) for label, start in (("Hyper-X", "hyperx-multi"), ("MAD-X", "madx"))}


def _few_shot(start: str) -> Comparison:
    by_language = {language: few_shot_rows(start, language) for language in ("mt", "myv", "wo", "te")}
    sides = [
        Side(str(count), {CORPORA["names"][x]: select(rows[place], "pos", [x]) for x, rows in by_language.items()})
        for place, count in enumerate((0, 5, 10, 20, 50))
    ]
    return Comparison(sides=sides, labels=("tagged sentences",))


TABLES: dict[str, Callable[[], Tables]] = {
    "tuning": tuning, "transfer": transfer, "mixed": mixed, "swaps": swaps, "conditioning": conditioning,
    "layers": layers, "length": length, "language-stage": language_stage, "bilingual": bilingual,
    "ablations": ablations, "few-shot": few_shot,
}  # fmt: skip
