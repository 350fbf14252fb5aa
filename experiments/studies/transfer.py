"""Zero-shot transfer of tags and entities in a laboratory: all encoder methods with the same text, labels and steps.

A laboratory is a backbone, languages and corpora (`experiments.studies.labs`). Every row has the same number of steps
on raw text and on each task, in one mixture or in stages; rows named `more-text` have more of the former.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.study import Settings, Study

TASKS = ("pos", "ner")
WITH_TEXT, LABELLED = 8, 2  # datasets in a batch, with raw text and without
MORE_TEXT = 4  # times the steps on raw text, in rows that ask whether they were too few


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A laboratory.

    Attributes:
        name: Name of its study.
        backbone: Name of its backbone among the materials.
        languages: All languages.
        seen: Languages of the backbone's pretraining.
        pairs: The source of labels for every other language; its values are the sources.
        halves: Languages with tags and languages with entities in the mixed setting.
        corpus: The corpus of a task, a language and a split; ``None`` if there is none.
        labels: Number of labels of each task, which PSF must know.
        steps: Steps on raw text and on each task.
        tuning_steps: The same in runs that choose learning rates. Default: `steps`.
        rows: Names of the rows that are measured.
        rates: Learning rates that are tried for each method.
        best: The chosen learning rate of each method.
        sizes: Settings of each method.
        train: Settings of training.
    """

    name: str
    backbone: str
    languages: Callable[[], Sequence[str]]
    seen: Callable[[], Sequence[str]]
    pairs: Callable[[], Mapping[str, str]]
    halves: tuple[Sequence[str], Sequence[str]]
    corpus: Callable[[str, str, str], str | None]
    labels: Mapping[str, int]
    steps: Mapping[str, int]
    rows: Sequence[str]
    rates: Mapping[str, Sequence[float]]
    best: Mapping[str, float]
    sizes: Mapping[str, Settings]
    train: Settings
    tuning_steps: Mapping[str, int] | None = None

    @property
    def sources(self) -> list[str]:
        """The languages with labels."""
        return list(dict.fromkeys(self.pairs().values()))

    @property
    def mixed(self) -> list[str]:
        """The labelled conditions of the mixed setting."""
        return [f"{task}/{x}" for task, half in zip(TASKS, self.halves, strict=True) for x in half]

    def unlabelled(self, row: str, task: str) -> list[str]:
        """Return the languages that a row is scored on in a task.

        They have no labels at all; in the mixed setting they have labels of the other task (Hyper-X, §4).
        """
        other = self.halves[1 - TASKS.index(task)]
        chosen = other if row.endswith("-mixed") else set(self.languages()) - set(self.sources)
        return [x for x in self.languages() if x in chosen and self.corpus(task, x, "test")]


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
        "tasks": {task: {"labels": lab.labels[task]} if name == "psf" else {} for task in tasks},
        "data": {
            "train": {c: lab.corpus(c.partition("/")[0], c.partition("/")[2], "train") for c in conditions},
            "test": {
                f"{task}/{x}": corpus for task in labelled for x in languages if (corpus := lab.corpus(task, x, split))
            },
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
    longer = replace(lab, steps={**lab.steps, "mlm": MORE_TEXT * lab.steps["mlm"]})
    for name in ("madx", "hyper-stack"):
        yield f"{name}-more-text", recipe(longer, materials, {"name": name}, both + text)
    yield build("full-mixed", {"name": "full"}, lab.mixed)
    yield build("psf-mixed", {"name": "psf"}, lab.mixed)
    yield build("multilingual-mixed", {"name": "multilingual"}, lab.mixed + text)
    yield build("madx-mixed", {"name": "madx"}, lab.mixed + text)
    yield build("hyperx-mixed", {"name": "hyperx"}, lab.mixed + text)
    yield build("hyperx-no-text-mixed", {"name": "hyperx"}, lab.mixed)


def tried(lab: Lab) -> dict[str, Sequence[float]]:
    """Return the learning rates that are tried for each method of the measured rows."""
    methods = {settings["method"]["name"] for name, settings in rows(lab, Path()) if name in lab.rows}
    return {name: rates for name, rates in lab.rates.items() if name in methods}


def tuning(lab: Lab, materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield the runs that choose learning rates, scored on development sets."""
    lab = replace(lab, steps=lab.tuning_steps or lab.steps)
    for name, rates in tried(lab).items():
        if name == "psf":
            train = lab.mixed
        else:
            train = [f"{task}/{source}" for task in TASKS for source in lab.sources] + ["mlm"] * (name != "full")
        for lr in rates:
            yield f"{name}-lr{lr:g}", recipe(lab, materials, {"name": name}, train, lr=lr, split="dev")


def studies(lab: Lab) -> tuple[Study, Study]:
    """Build the study of a laboratory and the study that tunes it."""
    counts = {name: len(rates) for name, rates in lab.rates.items()}
    needs = (lab.backbone,)
    tuned = Study(f"{lab.name}-tuning", lambda m: dict(tuning(lab, m)), seeds=(9,), tried=counts, needs=needs)
    measured = Study(
        lab.name, lambda m: {name: made for name, made in rows(lab, m) if name in lab.rows}, seeds=(0, 1, 2),
        tried=counts, baselines=("full", "multilingual", "madx"), needs=needs,
    )  # fmt: skip
    return tuned, measured
