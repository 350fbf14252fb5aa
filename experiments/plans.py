"""From an experiment's few lines to recipes: every row with every seed, all with the same corpora and budgets."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from job import HERE, Job, Settings, merged
from translations import translation_jobs

from polyloom.errors import PolyloomError, suggest
from polyloom.io.yaml import read_settings

TASKS = ("mlm", "pos", "ner", "dep")
SHARED = ("corpora", "methods", "directions", "growth")  # read by others


def experiments() -> list[str]:
    """The names of all experiments."""
    return sorted(p.stem for p in HERE.glob("*.yaml") if p.stem not in SHARED)


def read_experiment(name: str) -> Settings:
    """An experiment as its file has it: one of ours by name, or any file."""
    if name.endswith(".yaml"):
        return read_settings(name)
    if name not in experiments():
        raise PolyloomError(f"experiment {name!r}: there is none. {suggest(name, experiments())}")
    return read_settings(HERE / f"{name}.yaml")


def jobs(name: str, *, runs: Path, backbone: str | None = None) -> Iterator[Job]:
    """All runs of an experiment, seed by seed, so that one cut short has whole tables of few seeds."""
    experiment = read_experiment(name)
    if experiment.get("kind") == "translation":
        yield from translation_jobs(Path(name).stem, experiment, runs=runs)
        return
    corpora = read_settings(HERE / "corpora.yaml") | experiment.get("corpora", {})
    seeds = {row: settings.get("seeds", experiment["seeds"]) for row, settings in experiment["rows"].items()}
    for seed in sorted({seed for some in seeds.values() for seed in some}):
        for row, own in experiment["rows"].items():
            if seed in seeds[row]:
                settings = {key: experiment[key] for key in ("steps", "languages") if key in experiment} | own
                settings["set"] = merged(experiment.get("set", {}), own.get("set", {}))
                recipe = make_recipe(settings, corpora, seed)
                if backbone is not None:
                    recipe["backbone"]["name"] = backbone
                if "init_from" in settings:
                    recipe["init_from"] = str(runs / f"{settings['init_from']}-{seed}")
                tested = recipe["data"]["test"] if seed in settings.get("swap", ()) else ()
                swaps = {condition: _donors(condition, recipe["languages"], corpora) for condition in tested}
                yield Job(Path(name).stem, row, seed, recipe, swaps)


def make_recipe(row: Settings, corpora: Settings, seed: int) -> Settings:
    """The recipe of a row: its method's settings, the corpora of its cells, and its budget of steps."""
    methods = _methods()
    languages = row.get("languages", list(corpora["text"]))
    train = _train(row["train"], languages, corpora)
    tasks = [task for task in TASKS if any(cell.startswith(f"{task}/") for cell in train)]
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
    recipe = merged(methods["common"], merged(fragment, merged(recipe, _budget(row["steps"], train, stages=stages))))
    recipe["tasks"] = {task: recipe["tasks"][task] for task in tasks}
    return merged(recipe, row["set"])


@cache
def _methods() -> Settings:
    return read_settings(HERE / "methods.yaml")


def _train(chosen: Any, languages: Iterable[str], corpora: Settings) -> Settings:
    """Corpora by cell: ``mlm`` for raw text of all languages, ``pos/en`` for one cell, or corpora as they are."""
    if isinstance(chosen, dict):
        return chosen
    cells: Settings = {}
    for cell in chosen:
        task, _, language = cell.partition("/")
        if task == "mlm":
            cells |= {f"mlm/{name}": corpora["text"][name] for name in ([language] if language else languages)}
        else:
            cells[cell] = corpora["train"][_source(cell)]
    return cells


def _scored(chosen: Iterable[str], languages: Iterable[str], test: Settings) -> Settings:
    """Corpora of all conditions of tasks (``pos``), or of single ones (``pos/mt``)."""
    cells = [[name] if "/" in name else [f"{name}/{language}" for language in languages] for name in chosen]
    return {cell: test[_source(cell)] for some in cells for cell in some if _source(cell) in test}


def _donors(condition: str, languages: Iterable[str], corpora: Settings) -> tuple[str, ...]:
    """Languages whose weights take the place of a condition's own: a relative, if there is one, and strangers."""
    found = (corpora[kind].get(condition.partition("/")[2]) for kind in ("related", "distant", "peer"))
    return tuple(dict.fromkeys(donor for donor in found if donor in languages))


def _source(cell: str) -> str:
    """Trees are those of the treebanks that tags are from."""
    return cell.replace("dep/", "pos/")


def _budget(steps: Mapping[str, int], cells: Iterable[str], *, stages: bool) -> Settings:
    """So many steps of each task, shared evenly by its cells: in stages one after the other, else mixed.

    Where raw text is learnt, batches have rows of four cells: a language is then in four times as many steps.
    """
    by_task: dict[str, list[str]] = {}
    for cell in cells:
        by_task.setdefault(cell.partition("/")[0], []).append(cell)
    labelled = sum(steps[task] for task in by_task if task != "mlm")
    if stages:
        turns = {"strategy": "round-robin"}
        made = {"tasks": {"train": {"steps": labelled}, "mixture": turns}}
        if "mlm" in by_task:
            made["languages"] = {"train": {"steps": steps["mlm"]}, "mixture": turns | {"datasets_per_batch": 4}}
        return {"stages": made}
    total = labelled + ("mlm" in by_task and steps["mlm"])
    weights = {cell: steps[task] / len(names) for task, names in by_task.items() for cell in names}
    mixture = {"strategy": "weights", "weights": weights} | ({"datasets_per_batch": 4} if "mlm" in by_task else {})
    return {"train": {"steps": total}, "mixture": mixture}
