"""From an experiment on translation to recipes: every language with English, both ways, and pairs never trained."""

from collections.abc import Iterator
from pathlib import Path

from plans import Job, Settings, merged


def translation_jobs(name: str, experiment: Settings, *, runs: Path) -> Iterator[Job]:
    """All runs, seed by seed."""
    for seed in experiment["seeds"]:
        for row, method in experiment["rows"].items():
            recipe = make_recipe(experiment, method, seed)
            recipe["backbone"]["tokenizer"] = str(vocabulary_folder(name, runs))
            yield Job(name, row, seed, recipe, {})


def vocabulary_folder(name: str, runs: Path) -> Path:
    """Where the vocabulary of an experiment lies, which all its runs share."""
    return runs / name / "vocabulary"


def make_recipe(experiment: Settings, method: Settings, seed: int) -> Settings:
    """The recipe of a row."""
    corpora, (english, *others) = experiment["pairs"], experiment["languages"]
    data: dict[str, Settings] = {"train": {}, "validation": {}, "test": {}}
    for other in others:
        corpus = f"{corpora}:{english}-{other}"
        some = "" if other in experiment["whole"] else f"[:{experiment['test']}]"
        for direction in (f"mt/{english}/{other}", f"mt/{other}/{english}"):
            data["train"][direction] = f"{corpus}/train"
            data["validation"][direction] = f"{corpus}/dev[:20]"
            data["test"][direction] = f"{corpus}/test{some}"
    for pair in experiment["zero-shot"]:
        one, other = pair.split("-")
        for direction in (f"mt/{one}/{other}", f"mt/{other}/{one}"):
            data["test"][direction] = f"tatoeba-zero:{pair}/test[:{experiment['test']}]"
    recipe = {
        "backbone": {},
        "method": method,
        "languages": experiment["languages"],
        "tasks": {"mt": {}},
        "directions": [f"{english}/*", f"*/{english}"],
        "data": data,
        "train": {"seed": seed},
    }
    return merged(experiment["set"], recipe)
