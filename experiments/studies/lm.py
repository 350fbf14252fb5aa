"""A decoder language model in many languages: one LoRA for all, one stored for each, or one generated for each.

SmolLM2-135M, which was pretrained on English, stays frozen. Training text are verses of the Bible in 14 languages of
eight scripts; the held-out verses are the same in all languages. Then further languages are added, each from 200
verses: by its embedding alone, or with a stored LoRA.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.study import Addition, Settings, Study

LANGUAGES = (
    "deu", "fra", "rus", "arb", "heb", "hin", "cmn", "vie", "ind", "hye", "swh", "sna", "hau", "ewe",
)  # fmt: skip
FURTHER = ("nld", "ukr", "tsn", "twi")  # relatives of German, Russian, Shona and Ewe
ADDED = FURTHER[:3]
STEPS, TUNING_STEPS = 100, 80
VERSES = {"dev": 40, "test": 20}  # of each language that is scored
NEW_VERSES = 200  # of a language that is added
NEW_STEPS = {"best-donor": 30, "mean": 1}  # by what it starts as; of the mean, the start alone is shown
LORA = {"block": "lora", "targets": "all-linear", "adapter_size": 8}
METHODS: Mapping[str, Settings] = {
    "shared": {"name": "multilingual", "invertible": False},
    "stored": {"name": "madx", "invertible": False},
    "generated": {"name": "hyper-stack"},
}
ADDED_TO = ("stored", "generated")  # a shared LoRA has all languages already
RATES = {  # the best one has neighbours on both sides
    "shared": (1e-3, 3e-3, 1e-2, 3e-2),
    "stored": (3e-4, 1e-3, 3e-3, 1e-2),
    "generated": (3e-4, 1e-3, 3e-3, 1e-2),
}
BEST = {"shared": 1e-2, "stored": 3e-3, "generated": 1e-3}
FROZEN = 1e-12  # the learning rate of the row that shows the model as it is


def corpus(language: str, split: str, verses: int) -> str:
    """Name the first verses of a split."""
    return f"bible:{language}/{split}[:{verses}]"


def recipe(materials: Path, name: str, *, lr: float, steps: int, split: str) -> Settings:
    """Build the recipe of a run that is scored on a split; the shared LoRA on all languages."""
    tested = (*LANGUAGES, *FURTHER) if name == "shared" else LANGUAGES
    return {
        "backbone": {"name": str(materials / "smollm2")},
        "method": {**LORA, **METHODS[name]},
        "languages": list(tested),
        "tasks": {"lm": {}},
        "data": {
            "train": {f"lm/{name}": f"bible:{name}/train" for name in LANGUAGES},
            "test": {f"lm/{name}": corpus(name, split, VERSES[split]) for name in tested},
        },
        "mixture": {"strategy": "round-robin", "datasets_per_batch": 8},
        "optim": {"lr": lr, "warmup_steps": 20},
        "train": {"steps": steps, "rows_per_batch": 8, "max_length": 64, "pack_sequences": True, "dropout": False},
    }


def tuning(materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield the runs that choose learning rates."""
    for name in METHODS:
        for lr in RATES[name]:
            yield f"{name}-lr{lr:g}", recipe(materials, name, lr=lr, steps=TUNING_STEPS, split="dev")


def rows(materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield the rows that are compared."""
    yield "frozen", recipe(materials, "shared", lr=FROZEN, steps=1, split="test")
    for name in METHODS:
        yield name, recipe(materials, name, lr=BEST[name], steps=STEPS, split="test")


def additions(settings: Settings) -> Sequence[Addition]:
    """Add the further languages from their best donor and from the mean of all."""
    if settings["method"] not in [LORA | METHODS[name] for name in ADDED_TO]:
        return ()
    return [
        Addition(
            name,
            {"text": corpus(name, "train", NEW_VERSES), "test": {"lm": corpus(name, "test", VERSES["test"])}},
            {"steps": steps, "rows_per_batch": 8, "init_from": start},
            f"{name}/{start}",
        )
        for name in ADDED
        for start, steps in NEW_STEPS.items()
    ]


TRIED = {str(method["name"]): len(RATES[name]) for name, method in METHODS.items()}
NEEDS = ("smollm2",)
TUNING = Study("lm-tuning", lambda materials: dict(tuning(materials)), seeds=(9,), tried=TRIED, needs=NEEDS)
LM = Study("lm", lambda materials: dict(rows(materials)), seeds=(0, 1, 2), tried=TRIED, needs=NEEDS, adds=additions)
