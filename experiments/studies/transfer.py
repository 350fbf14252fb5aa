"""Zero-shot transfer of tags and entities in a laboratory: all encoder methods with the same text, labels and steps.

A laboratory is a backbone, languages and corpora. The family is synthetic: its backbone is pretrained on 8 of 24
languages until its masked loss is flat, and one language of each of three branches has labels. Every row has the same
number of steps on raw text and on each task, in one mixture or in stages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.materials import ALL, family
from experiments.study import Settings, Study

TASKS = ("pos", "ner")
WITH_TEXT, LABELLED = 8, 2  # datasets in a batch, with raw text and without
SOURCES = ("boza", "kepa", "neno")  # of the family: the first language of each large branch
RATES = {  # tried for each method, in `<laboratory>-tuning`
    "full": (2e-4, 6e-4, 2e-3),
    "psf": (2e-4, 6e-4, 2e-3),
    "madx": (1e-3, 3e-3, 1e-2),
    "multilingual": (1e-3, 3e-3, 1e-2),
    "badx": (1e-3, 3e-3, 1e-2),
    "hyperx": (1e-3, 3e-3, 1e-2),
    "hyper-stack": (1e-3, 3e-3, 1e-2),
}


@dataclass(frozen=True)
class Lab:
    """A laboratory.

    Attributes:
        name: Name of its study.
        backbone: Name of its backbone among the materials.
        languages: All languages.
        pairs: The source of labels for every other language; its values are the sources.
        mixed: Languages with entities in the mixed setting, where sources have tags; switched in its second partition.
        corpus: The corpus of a condition and a split.
        steps: Steps on raw text and on each task.
        rows: Names of the rows that are measured.
        sizes: Settings of each method.
        train: Settings of training.
        best: The chosen learning rate of each method.
    """

    name: str
    backbone: str
    languages: Callable[[], Sequence[str]]
    pairs: Callable[[], Mapping[str, str]]
    mixed: Sequence[str]
    corpus: Callable[[str, str, str], str]
    steps: Mapping[str, int]
    rows: Sequence[str]
    sizes: Mapping[str, Settings]
    train: Settings
    best: Mapping[str, float]

    @property
    def sources(self) -> list[str]:
        """The languages with labels."""
        return list(dict.fromkeys(self.pairs().values()))

    @property
    def partitions(self) -> list[list[str]]:
        """The labelled conditions of both partitions of the mixed setting."""
        halves = (self.sources, self.mixed)
        return [[f"pos/{x}" for x in tagged] + [f"ner/{x}" for x in named] for tagged, named in (halves, halves[::-1])]


def recipe(
    lab: Lab, materials: Path, method: Settings, train: Sequence[str], *, lr: float | None = None, split: str = "test"
) -> Settings:
    """Build the recipe of a row.

    Args:
        lab: The laboratory.
        materials: Folder of the backbones.
        method: Settings of the method that differ from the laboratory's.
        train: Conditions with labels; ``mlm`` is raw text of all languages.
        lr: Learning rate. Default: the chosen one.
        split: The split to score.
    """
    languages, name = lab.languages(), method["name"]
    conditions = [c for part in train for c in ([f"mlm/{x}" for x in languages] if part == "mlm" else [part])]
    tasks = [task for task in ("mlm", *TASKS) if any(c.startswith(f"{task}/") for c in conditions)]
    counts = {task: sum(c.startswith(f"{task}/") for c in conditions) for task in tasks}
    labelled = [task for task in tasks if task != "mlm"]
    settings: Settings = {
        "backbone": {"name": str(materials / lab.backbone)},
        "method": {**lab.sizes.get(name, {}), **method},
        "languages": list(languages),
        "tasks": {task: {"labels": 17 if task == "pos" else 7} if name == "psf" else {} for task in tasks},
        "data": {
            "train": {c: lab.corpus(c.partition("/")[0], c.partition("/")[2], "train") for c in conditions},
            "test": {f"{task}/{x}": lab.corpus(task, x, split) for task in labelled for x in languages},
        },
        "optim": {"lr": lr or lab.best[name], "warmup_steps": 30},
        "train": lab.train,
    }  # fmt: skip
    if name == "badx":
        settings["directions"] = [f"{source}/{target}" for target, source in lab.pairs().items()]
    taught = sum(lab.steps[task] for task in labelled)
    if name in ("madx", "multilingual", "badx", "hyper-stack"):
        turns = {"strategy": "round-robin"}
        stages = {"tasks": {"train": {"steps": taught}, "mixture": turns | {"datasets_per_batch": LABELLED}}}
        if "mlm" in tasks:
            text = turns | {"datasets_per_batch": WITH_TEXT}
            head = lab.steps["mlm"] // 8 if name != "hyper-stack" else 0
            stages["languages"] = {"train": {"steps": lab.steps["mlm"] - head}, "mixture": text}
            if head:
                stages["head"] = {"train": {"steps": head}, "mixture": text}
        return settings | {"stages": stages}
    weights = {c: lab.steps[task] / counts[task] for c in conditions for task in [c.partition("/")[0]]}
    settings["mixture"] = {
        "strategy": "weights",
        "weights": weights,
        "datasets_per_batch": WITH_TEXT if "mlm" in tasks else LABELLED,
    }
    settings["train"] = lab.train | {"steps": taught + ("mlm" in tasks) * lab.steps["mlm"]}
    return settings


def rows(lab: Lab, materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield all possible rows: labels of sources in one task, in both, or of some languages in one and of others."""
    both, text = [f"{task}/{source}" for task in TASKS for source in lab.sources], ["mlm"]
    alone = {"name": "madx", "language_adapters": False, "invertible": False}

    def build(name: str, method: Settings, train: Sequence[str]) -> tuple[str, Settings]:
        return name, recipe(lab, materials, method, train)

    yield build("full", {"name": "full"}, both)
    yield build("task-adapters", alone, both)
    yield build("multilingual", {"name": "multilingual"}, both + text)
    yield build("madx", {"name": "madx"}, both + text)
    yield build("hyperx", {"name": "hyperx"}, both + text)
    yield build("hyper-stack", {"name": "hyper-stack"}, both + text)
    yield build("madx-2", {"name": "madx", "drop_last_layer": True}, both + text)
    yield build("madx-no-inv", {"name": "madx", "invertible": False}, both + text)
    yield build("badx", {"name": "badx"}, both + text)
    for task in TASKS:
        yield build(f"hyperx-{task}", {"name": "hyperx"}, [f"{task}/{source}" for source in lab.sources] + text)
    for number, mixed in enumerate(lab.partitions, start=1):
        yield build(f"full-mixed{number}", {"name": "full"}, mixed)
        yield build(f"psf-mixed{number}", {"name": "psf"}, mixed)
        yield build(f"madx-mixed{number}", {"name": "madx"}, mixed + text)
        yield build(f"hyperx-mixed{number}", {"name": "hyperx"}, mixed + text)
        yield build(f"hyperx-no-text-mixed{number}", {"name": "hyperx"}, mixed)
        yield build(f"hyper-stack-mixed{number}", {"name": "hyper-stack"}, mixed + text)


def tuning(lab: Lab, materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield the runs that choose learning rates, scored on development sets."""
    methods = {settings["method"]["name"] for name, settings in rows(lab, materials) if name in lab.rows}
    for name, rates in RATES.items():
        if name not in methods:
            continue
        if name == "psf":
            train = lab.partitions[0]
        else:
            train = [f"{task}/{source}" for task in TASKS for source in lab.sources] + ["mlm"] * (name != "full")
        for lr in rates:
            yield f"{name}-lr{lr:g}", recipe(lab, materials, {"name": name}, train, lr=lr, split="dev")


def _synthetic(task: str, language: str, split: str) -> str:
    return f"synthetic:{language}/{split}" + ("#ner" if task == "ner" else "")


def _nearest_sources() -> dict[str, str]:
    """Return the labelled language of every language's branch; of the small branch, the first."""
    from polyloom.data.synthetic.corpus import FAMILY as TREE  # noqa: PLC0415 - takes a while

    founders = TREE.groups()
    return {
        name: founders[name] if founders[name] in SOURCES else SOURCES[0] for name in family(ALL) if name not in SOURCES
    }


FAMILY = Lab(
    name="family",
    backbone="family-backbone",
    languages=lambda: family(ALL),
    pairs=_nearest_sources,
    mixed=("bame", "kumi", "nina"),
    corpus=_synthetic,
    steps={"mlm": 600, "pos": 300, "ner": 300},
    rows=("full", "task-adapters", "multilingual", "madx", "madx-2", "hyperx", "hyper-stack"),
    sizes={
        "madx": {"adapter_size": 48, "task_adapter_size": 96},
        "multilingual": {"adapter_size": 48, "task_adapter_size": 96},
        "badx": {"adapter_size": 48, "task_adapter_size": 96},
        "hyperx": {"adapter_size": 48, "projection_size": 24, "hidden_size": 64, "embedding_size": 32},
        "hyper-stack": {
            "adapter_size": 48, "task_adapter_size": 96, "projection_size": 8, "hidden_size": 64, "embedding_size": 32,
            "language_dropout": 0.5,
        },
    },
    train={"rows_per_batch": 64, "grad_accum_steps": 4, "max_length": 48, "dropout": False},
    best={
        "full": 6e-4, "psf": 6e-4, "madx": 3e-3, "multilingual": 3e-3, "badx": 3e-3, "hyperx": 3e-3,
        "hyper-stack": 3e-3,
    },
)  # fmt: skip


def studies(lab: Lab) -> tuple[Study, Study]:
    """Build the study of a laboratory and the study that tunes it."""
    tried = {name: len(rates) for name, rates in RATES.items()}
    needs = (lab.backbone,)
    tuned = Study(f"{lab.name}-tuning", lambda m: dict(tuning(lab, m)), seeds=(9,), tried=tried, needs=needs)
    measured = Study(
        lab.name, lambda m: {name: made for name, made in rows(lab, m) if name in lab.rows}, seeds=(0, 1, 2),
        tried=tried, baselines=("full", "multilingual", "madx"), needs=needs,
    )  # fmt: skip
    return tuned, measured
