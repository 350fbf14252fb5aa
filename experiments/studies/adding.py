"""Adding languages: does the space of embeddings carry, once a hypernetwork knows many languages?

Hyper-Stack is trained on the first 8, 16, 24 or 40 languages of the family, with the same number of steps. Then each of
four further languages is added from raw text (`polyloom add language`): by its embedding alone, with a stored
low-rank adapter beside the generated one, or with a stored adapter of full size.
"""

from collections.abc import Iterator
from pathlib import Path

from experiments.materials import family
from experiments.studies.labs import FAMILY, SOURCES
from experiments.study import Addition, Settings, Study

KNOWN = (8, 16, 24, 40)
ADDED = ("basu", "kufe", "bulo", "nute")  # after the first 40 of the family
STORED = {"embedding": 0, "low-rank": 4, "adapter": 48}  # units that a new language stores


def recipe(materials: Path, *, known: int, stored: int) -> Settings:
    """Build the recipe of a run: raw text of all known languages, then tags of three."""
    languages = family(known)
    turns = {"strategy": "round-robin"}
    return {
        "backbone": {"name": str(materials / FAMILY.backbone)},
        "method": FAMILY.sizes["hyper-stack"] | {"name": "hyper-stack", "stored_size": stored},
        "languages": list(languages),
        "tasks": {"mlm": {}, "pos": {}},
        "data": {
            "train": {
                **{f"mlm/{name}": FAMILY.corpus("mlm", name, "train") for name in languages},
                **{f"pos/{name}": FAMILY.corpus("pos", name, "train") for name in SOURCES},
            },
            "test": {f"pos/{name}": FAMILY.corpus("pos", name, "test") for name in SOURCES},
        },
        "optim": {"lr": FAMILY.best["hyper-stack"], "warmup_steps": 30},
        "stages": {
            "languages": {"train": {"steps": FAMILY.steps["mlm"]}, "mixture": turns | {"datasets_per_batch": 8}},
            "tasks": {"train": {"steps": FAMILY.steps["pos"]}, "mixture": turns | {"datasets_per_batch": 2}},
        },
        "train": FAMILY.train,
    }


def rows() -> Iterator[tuple[int, str]]:
    """Yield the number of known languages of each row, and what a new language stores."""
    for known in KNOWN:
        yield known, "embedding"
    yield from ((known, name) for known in (KNOWN[0], KNOWN[-1]) for name in STORED if name != "embedding")


ADDING = Study(
    "adding",
    lambda materials: {
        f"{name}-l{known}": recipe(materials, known=known, stored=STORED[name]) for known, name in rows()
    },
    seeds=(0, 1, 2), tried={"hyper-stack": 3},
    needs=(FAMILY.backbone,),
    adds=lambda _: [
        Addition(name, {"text": f"synthetic:{name}/train", "test": {"pos": f"synthetic:{name}/test"}}) for name in ADDED
    ],
)  # fmt: skip
