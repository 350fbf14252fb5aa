"""From an experiment on translation to recipes: every language with English, both ways, and pairs that nobody trained.

Also what is particular about scoring them: through English, and with the weights of other languages.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from job import HERE, Job, Settings, merged

from polyloom.io.yaml import read_settings

if TYPE_CHECKING:
    from polyloom.model import Model
    from polyloom.workflows.run import Run

SHARED = read_settings(HERE / "directions.yaml")
ENGLISH, *OTHERS = SHARED["languages"]
HALVES = {language: (f"{language}-a", f"{language}-b") for language in SHARED["split"]}
HALF = 5000  # pairs of the ten thousand that every language has that is split


def translation_jobs(name: str, experiment: Settings, *, runs: Path) -> Iterator[Job]:
    """All runs of an experiment, seed by seed."""
    for seed in experiment["seeds"]:
        for row, own in experiment["rows"].items():
            halves = HALVES if own.get("split") else {}
            without = own.get("without", "")
            data = make_data(halves, own.get("zero-shot", SHARED["zero-shot"]), without=without)
            recipe = merged(SHARED["set"], data)
            recipe = merged(recipe, own.get("set") or SHARED["methods"].get(own["method"]["name"], {}))
            recipe |= {"method": own["method"], "train": recipe["train"] | {"seed": seed}}
            vocabulary = f"vocabulary-without-{without}" if without else "vocabulary"
            backbone = recipe["backbone"] | {"tokenizer": str(runs / vocabulary)}
            swaps = _swaps() if seed in own.get("swap", ()) else {}
            yield Job(name, row, seed, recipe | {"backbone": backbone}, swaps)


def _swaps() -> dict[str, tuple[str, ...]]:
    """For both directions of some languages, whose weights take the place of theirs."""
    donors = {other: (SHARED["related"][other], SHARED["distant"][other]) for other in SHARED["related"]}
    return {
        condition: both
        for other, both in donors.items()
        for condition in (f"mt/{ENGLISH}/{other}", f"mt/{other}/{ENGLISH}")
    }


def make_data(halves: dict[str, tuple[str, str]], zero_shot: Sequence[str], *, without: str = "") -> Settings:
    """Languages and corpora; some languages are made two, of half the pairs each; pairs that are scored only.

    A language may be left out, to be added later.
    """
    data: dict[str, Settings] = {"train": {}, "validation": {}, "test": {}}
    languages = [ENGLISH]
    for other in (language for language in OTHERS if language != without):
        corpus = f"{SHARED['pairs']}:{ENGLISH}-{other}"
        some = "" if other in SHARED["whole"] else f"[:{SHARED['test']}]"
        for number, half in enumerate(halves.get(other, (other,))):
            languages.append(half)
            names = f"#{ENGLISH},{half}" if other in halves else ""
            part = f"[{HALF * number}:{HALF * (number + 1)}]" if other in halves else ""
            for direction in (f"mt/{ENGLISH}/{half}", f"mt/{half}/{ENGLISH}"):
                data["train"][direction] = f"{corpus}/train{names}{part}"
                data["validation"][direction] = f"{corpus}/dev{names}[:20]"
                data["test"][direction] = f"{corpus}/test{names}{some}"
    for pair in zero_shot:
        one, other = pair.split("-")
        for direction in (f"mt/{one}/{other}", f"mt/{other}/{one}"):
            data["test"][direction] = f"tatoeba-zero:{pair}/test[:{SHARED['test']}]"
    return {"languages": languages, "directions": [f"{ENGLISH}/*", f"*/{ENGLISH}"], "data": data}


def make_vocabulary(into: Path) -> None:
    """The vocabulary of all experiments, with tokens for halves of languages too; or without a language."""
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415

    texts: dict[str, list[str]] = {ENGLISH: []}
    without = into.name.removeprefix("vocabulary-without-")
    for other in (language for language in OTHERS if language != without):
        pairs: list[Any] = list(resolve(f"{SHARED['pairs']}:{ENGLISH}-{other}/train").records("bitext"))
        texts[ENGLISH] += [pair.source for pair in pairs]
        texts[other] = [pair.target for pair in pairs]
    tokens = [*texts, *(half for both in HALVES.values() for half in both)]
    train_vocabulary(texts, into, config=VocabularyConfig(size=SHARED["vocabulary"]), languages=tokens)


def score_translations(run: "Run", job: Job, test: Mapping[str, Sequence[str]]) -> Settings:
    """Scores of all directions; of those nobody trained also through English; also with weights of other languages."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.probe.swap import DonatedCache, with_donor  # noqa: PLC0415

    direct = run.evaluate(test).to_dict()
    untrained = {name: corpora for name, corpora in test.items() if ENGLISH not in name.split("/")}
    through = run.evaluate(untrained, pivot=ENGLISH).to_dict()
    swaps: dict[str, Settings] = {condition: {} for condition in job.swaps}
    run.predictor.cache = cache = DonatedCache(run.model)
    for donors in zip(*job.swaps.values(), strict=True):  # of all conditions together: first relatives, then strangers
        chosen = dict(zip(job.swaps, donors, strict=True))
        cache.donated = {
            condition: with_donor(condition, donor, ENGLISH) or condition
            for condition, donor in ((Condition.parse(name), donor) for name, donor in chosen.items())
        }
        found = run.evaluate({condition: test[condition] for condition in chosen}).to_dict()["cells"]
        for condition, donor in chosen.items():
            swaps[condition][donor] = compact(found[condition])
    return {
        "cells": {name: compact(cell) for name, cell in direct["cells"].items()},
        "pivot": {name: compact(cell) for name, cell in through["cells"].items()},
        "refused": direct["refused"],
        "swaps": swaps,
        "baselines": {},
        "embeddings": embeddings(run.model),
        "versions": direct["run"]["versions"],
    }


def embeddings(model: "Model") -> dict[str, list[float]]:
    """What a hypernetwork has learnt of every language; nothing of other methods."""
    from polyloom.methods.hyper_adapters import HyperAdapters  # noqa: PLC0415

    if not isinstance(model.method, HyperAdapters):
        return {}
    names, table = model.method.languages, model.method.embeddings.get_parameter("language.weight").tolist()
    return {name: [round(x, 4) for x in table[names.row(name)]] for name in SHARED["languages"] if name in names}


def compact(cell: Settings) -> Settings:
    """BLEU with its parts of every sentence, which intervals are made from; other scores with their sums."""
    first, *others = cell["scores"]
    summed = [score | {"parts": {name: [sum(part)] for name, part in score["parts"].items()}} for score in others]
    return cell | {"scores": [first, *summed]}
