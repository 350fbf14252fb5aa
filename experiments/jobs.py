"""Expand plans into jobs: one recipe for every row and seed, all with the same corpora and budgets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from experiments.storage import PLANS, Settings, read_plan
from polyloom.errors import PolyloomError, suggest
from polyloom.io.yaml import read_settings

TASKS = ("mlm", "pos", "ner", "dep")
SHARED = ("corpora", "methods", "directions", "add-languages")  # plans that `run` does not run
DIRECTIONS = read_plan("directions")
ENGLISH, *OTHERS = DIRECTIONS["languages"]
HALVES = {language: (f"{language}-a", f"{language}-b") for language in DIRECTIONS["split"]}
HALF = 5000  # pairs in each half of a split language; every split language has 10,000


@dataclass(frozen=True)
class Job:
    """One run of an experiment.

    Attributes:
        experiment: The name of the plan.
        row: The name of the row in the plan.
        seed: The random seed.
        recipe: The settings for `polyloom train`.
        swaps: The donor languages to score each condition with, by condition.
        directions: What the rows of a translation experiment share: pairs, languages, size of the vocabulary.
    """

    experiment: str
    row: str
    seed: int
    recipe: Settings
    swaps: Mapping[str, tuple[str, ...]]
    directions: Settings = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the job in file names."""
        return f"{self.row}-{self.seed}"


def experiments() -> list[str]:
    """List the names of all experiments."""
    return sorted(path.stem for path in PLANS.glob("*.yaml") if path.stem not in SHARED)


def read_experiment(name: str) -> Settings:
    """Read the plan of an experiment, by its name or from any YAML file."""
    if name.endswith(".yaml"):
        return read_settings(name)
    if name not in experiments():
        raise PolyloomError(f"experiment {name!r}: there is none. {suggest(name, experiments())}")
    return read_plan(name)


def jobs(name: str, *, runs: Path, backbone: str | None = None) -> Iterator[Job]:
    """Yield all jobs of an experiment seed by seed, so that an interrupted experiment has complete tables of few seeds.

    Args:
        name: An experiment's name or a YAML file.
        runs: The folder of the runs, for recipes that start from another run.
        backbone: A backbone to use instead of the plan's.
    """
    plan = read_experiment(name)
    if plan.get("kind") == "translation":
        yield from _translation_jobs(Path(name).stem, plan, runs=runs)
        return
    corpora = read_plan("corpora") | plan.get("corpora", {})
    seeds = {row: settings.get("seeds", plan["seeds"]) for row, settings in plan["rows"].items()}
    for seed in sorted({seed for row_seeds in seeds.values() for seed in row_seeds}):
        for row, row_settings in plan["rows"].items():
            if seed in seeds[row]:
                settings = {key: plan[key] for key in ("steps", "languages") if key in plan} | row_settings
                settings["set"] = merge(plan.get("set", {}), row_settings.get("set", {}))
                recipe = make_recipe(settings, corpora, seed)
                if backbone is not None:
                    recipe["backbone"]["name"] = backbone
                if "init_from" in settings:
                    recipe["init_from"] = str(runs / f"{settings['init_from']}-{seed}")
                tested = recipe["data"]["test"] if seed in settings.get("swap", ()) else ()
                swaps = {condition: _donors(condition, recipe["languages"], corpora) for condition in tested}
                yield Job(Path(name).stem, row, seed, recipe, swaps)


def merge(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """Merge nested settings. Overrides win; a mixture of another kind replaces the whole mixture."""
    merged = dict(settings)
    for key, value in overrides.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict) and "strategy" not in value
        merged[key] = merge(merged[key], value) if nested else value
    return merged


def make_recipe(row: Settings, corpora: Settings, seed: int) -> Settings:
    """Build the recipe of a row from its method's settings, its corpora and its budget of steps."""
    methods = _methods()
    languages = row.get("languages", list(corpora["text"]))
    train = _train(row["train"], languages, corpora)
    tasks = [task for task in TASKS if any(condition.startswith(f"{task}/") for condition in train)]
    scored = row.get("test", [task for task in tasks if task != "mlm"])
    recipe = {
        "languages": languages,
        "tasks": {task: {} for task in tasks},
        "directions": row.get("directions", []),
        "data": {
            "train": train,
            "test": _scored(scored, languages, corpora["test"]),
        },
        "train": {"seed": seed},
    }
    fragment = methods[row["method"]]
    stages = "stages" in fragment
    recipe = merge(methods["common"], merge(fragment, merge(recipe, _budget(row["steps"], train, stages=stages))))
    recipe["tasks"] = {task: recipe["tasks"][task] for task in tasks}
    return merge(recipe, row["set"])


@cache
def _methods() -> Settings:
    return read_plan("methods")


def _train(names: Any, languages: Iterable[str], corpora: Settings) -> Settings:
    """Look up corpora by condition: ``mlm`` is raw text of all languages, ``pos/en`` one condition."""
    if isinstance(names, dict):
        return names
    train: Settings = {}
    for name in names:
        task, _, language = name.partition("/")
        if task == "mlm":
            train |= {f"mlm/{other}": corpora["text"][other] for other in ([language] if language else languages)}
        else:
            train[name] = corpora["train"][_source(name)]
    return train


def _scored(names: Iterable[str], languages: Iterable[str], test: Settings) -> Settings:
    """Look up test corpora of all conditions of a task (``pos``) or of single conditions (``pos/mt``)."""
    groups = [[name] if "/" in name else [f"{name}/{language}" for language in languages] for name in names]
    return {name: test[_source(name)] for group in groups for name in group if _source(name) in test}


def _donors(condition: str, languages: Iterable[str], corpora: Settings) -> tuple[str, ...]:
    """List the donors of a condition: a related language, if there is one, and two unrelated ones."""
    donors = (corpora[kind].get(condition.partition("/")[2]) for kind in ("related", "distant", "peer"))
    return tuple(dict.fromkeys(donor for donor in donors if donor in languages))


def _source(condition: str) -> str:
    """Name the condition whose corpus has the labels: parsing uses the treebanks of tagging."""
    return condition.replace("dep/", "pos/")


def _budget(steps: Mapping[str, int], conditions: Iterable[str], *, stages: bool) -> Settings:
    """Share each task's steps evenly between its datasets, in stages one after the other or in one mixture.

    Batches have rows of four datasets if there is raw text, so that a language is in four times as many steps.
    """
    by_task: dict[str, list[str]] = {}
    for condition in conditions:
        by_task.setdefault(condition.partition("/")[0], []).append(condition)
    labelled = sum(steps[task] for task in by_task if task != "mlm")
    if stages:
        turns = {"strategy": "round-robin"}
        budget = {"tasks": {"train": {"steps": labelled}, "mixture": turns}}
        if "mlm" in by_task:
            budget["languages"] = {"train": {"steps": steps["mlm"]}, "mixture": turns | {"datasets_per_batch": 4}}
        return {"stages": budget}
    total = labelled + ("mlm" in by_task and steps["mlm"])
    weights = {condition: steps[task] / len(names) for task, names in by_task.items() for condition in names}
    mixture = {"strategy": "weights", "weights": weights} | ({"datasets_per_batch": 4} if "mlm" in by_task else {})
    return {"train": {"steps": total}, "mixture": mixture}


def _translation_jobs(name: str, plan: Settings, *, runs: Path) -> Iterator[Job]:
    """Yield the jobs of a plan that translates. Its keys replace those of `DIRECTIONS`; its settings override them."""
    shared = DIRECTIONS | {key: plan[key] for key in DIRECTIONS if key in plan and key != "set"}
    common = merge(DIRECTIONS["set"], plan.get("set", {}))
    folder = "vocabulary" if shared["pairs"] == DIRECTIONS["pairs"] else f"vocabulary-{name}"
    for seed in plan["seeds"]:
        for row, row_settings in plan["rows"].items():
            halves = HALVES if row_settings.get("split") else {}
            without = row_settings.get("without", "")
            zero_shot = row_settings.get("zero-shot", shared["zero-shot"])
            recipe = merge(common, _translation_data(shared, halves, zero_shot, without=without))
            method = row_settings["method"]
            recipe = merge(recipe, row_settings.get("set") or shared["methods"].get(method["name"], {}))
            recipe |= {"method": method, "train": recipe["train"] | {"seed": seed}}
            vocabulary = f"{folder}-without-{without}" if without else folder
            backbone = recipe["backbone"] | {"tokenizer": str(runs / vocabulary)}
            swaps = _translation_swaps() if seed in row_settings.get("swap", ()) else {}
            yield Job(name, row, seed, recipe | {"backbone": backbone}, swaps, shared)


def _translation_swaps() -> dict[str, tuple[str, ...]]:
    """List the donors of both directions of some languages: a related and an unrelated one."""
    donors = {other: (DIRECTIONS["related"][other], DIRECTIONS["distant"][other]) for other in DIRECTIONS["related"]}
    return {
        condition: pair
        for other, pair in donors.items()
        for condition in (f"mt/{ENGLISH}/{other}", f"mt/{other}/{ENGLISH}")
    }


def _translation_data(
    shared: Settings, halves: Mapping[str, tuple[str, str]], zero_shot: Sequence[str], *, without: str
) -> Settings:
    """Build languages and corpora.

    Args:
        shared: Pairs, languages and number of test pairs; the first language is in all pairs.
        halves: Languages to split into two, with half of the pairs each.
        zero_shot: Language pairs that are scored but not trained.
        without: A language to leave out, so that it can be added later.
    """
    data: dict[str, Settings] = {"train": {}, "validation": {}, "test": {}}
    common, *others = shared["languages"]
    languages = [common]
    for other in (language for language in others if language != without):
        corpus = f"{shared['pairs']}:{common}-{other}"
        test_slice = "" if other in shared["whole"] else f"[:{shared['test']}]"
        for number, half in enumerate(halves.get(other, (other,))):
            languages.append(half)
            names = f"#{common},{half}" if other in halves else ""
            train_slice = f"[{HALF * number}:{HALF * (number + 1)}]" if other in halves else ""
            for direction in (f"mt/{common}/{half}", f"mt/{half}/{common}"):
                data["train"][direction] = f"{corpus}/train{names}{train_slice}"
                data["validation"][direction] = f"{corpus}/dev{names}[:20]"
                data["test"][direction] = f"{corpus}/test{names}{test_slice}"
    for pair in zero_shot:
        left, right = pair.split("-")
        for direction in (f"mt/{left}/{right}", f"mt/{right}/{left}"):
            data["test"][direction] = f"tatoeba-zero:{pair}/test[:{shared['test']}]"
    return {"languages": languages, "directions": [f"{common}/*", f"*/{common}"], "data": data}
