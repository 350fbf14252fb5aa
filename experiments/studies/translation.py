"""Translation in the synthetic family: where do generated adapters pay?

Every cell of the map is a width of the model and a number of languages, each both ways with a common one; validation
losses on the way show the steps. Its rows have the same batches: a dense model; an adapter stored for each language;
generated adapters. Stored and generated adapters have equally many parameters. The cell with the least room for each
language has two more rows: `wide`, a dense model with wider feed-forward layers and as many parameters as those, and
`small`, a generator of the size that is equal with six languages.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

from experiments.materials import family
from experiments.study import Settings, Study, Swaps

WIDTHS = (32, 48)
LANGUAGES = (24, 6)  # the order of the runs
SHORT, STEPS, LONG, EVERY = 300, 900, 2700, 150  # EVERY: steps between validations
LONGER = 1000  # steps of the dense model that take as long as 900 with adapters (`python -m experiments time`)
FEWEST = min(LANGUAGES)
RATES = {  # tried in `map-tuning`: of the whole model, or of what a method adds to it
    "dense": (6e-3, 1.2e-2, 2.4e-2),
    "lang-adapters": (4e-3, 1.2e-2, 3.6e-2),
    "hyper-adapters": (6e-4, 2e-3, 6e-3),
}
BEST: dict[str, dict[int, float]] = {  # those with the lowest validation perplexity
    "dense": {32: 1.2e-2, 48: 1.2e-2},
    "lang-adapters": {32: 1.2e-2, 48: 4e-3},
    "hyper-adapters": {32: 2e-3, 48: 6e-4},
}
ADDED = {"dense": (), "lang-adapters": ("adapters",), "hyper-adapters": ("hypernetwork", "embeddings")}
EMBEDDING = 16
TUNED = ("dense", "stored", "generated")
VOCABULARY = "family-translation"  # among the materials


def adapter(width: int) -> int:
    """Return the bottleneck size of all adapters in a model."""
    return width // 2


def stored_parameters(width: int, languages: int) -> int:
    """Count the parameters of stored adapters of all languages, with the common one, at the model's four layers."""
    return (languages + 1) * 4 * generated_size(width)


def generated_size(width: int) -> int:
    """Count the numbers of one adapter: two matrices, two biases, a layer norm."""
    return 2 * width * adapter(width) + adapter(width) + 3 * width


def hidden_size(width: int, languages: int) -> int:
    """Return the width of the hypernetwork with which it has as many parameters as stored adapters of the languages."""
    wanted, size = stored_parameters(width, languages), 1
    while _hypernetwork(size + 1, width, languages) <= wanted:
        size += 1
    return size


def _hypernetwork(size: int, width: int, languages: int) -> int:
    """Count the parameters of a hypernetwork: input, two residual blocks, outputs, embeddings."""
    blocks = 2 * (2 * size * size + 4 * size)
    inputs = 3 * EMBEDDING * size + size + (languages + 1 + 4) * EMBEDDING
    return inputs + blocks + (size + 1) * generated_size(width)


def recipe(  # noqa: PLR0913 - what rows differ in
    method: Settings, materials: Path, *, width: int, languages: int, steps: int, ffn: int, lr: float, added: float
) -> Settings:
    """Build the recipe of a run; `lr` is the learning rate of the model, `added` of what the method adds to it."""
    common, *others = family(languages + 1)
    data: Settings = {"train": {}, "validation": {}, "test": {}}
    for other in others:
        for direction in (f"mt/{common}/{other}", f"mt/{other}/{common}"):
            corpus = f"synthetic:{common}-{other}"
            data["train"][direction] = f"{corpus}/train"
            data["validation"][direction] = f"{corpus}/dev[:{240 // languages}]"
            data["test"][direction] = f"{corpus}/test[:{240 // languages}]"
    optim: Settings = {"lr": lr, "schedule": "linear", "warmup_steps": 100, "betas": [0.9, 0.98], "eps": 1e-6}
    if added != lr:
        optim["groups"] = dict.fromkeys(ADDED[method["name"]], added)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": width, "encoder_ffn_dim": ffn, "decoder_ffn_dim": ffn}
    return {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(materials / VOCABULARY), "config": sizes},
        "method": method,
        "languages": [common, *others],
        "tasks": {"mt": {}},
        "directions": [f"{common}/*", f"*/{common}"],
        "data": data,
        "mixture": {"temperature": 2.0, "datasets_per_batch": 4},
        "optim": optim,
        "train": {
            "steps": steps, "evaluate_every": EVERY, "tokens_per_batch": 3072, "max_length": 64, "label_smoothing": 0.1,
            "dropout": False,
        },
    }  # fmt: skip


def methods(width: int, languages: int) -> dict[str, tuple[Settings, int]]:
    """Return the method and the width of the feed-forward layers of every row of a cell."""
    usual, size = 4 * width, adapter(width)
    generated = {"name": "hyper-adapters", "adapter_size": size, "embedding_size": EMBEDDING}
    wider = usual + round(stored_parameters(width, languages) / (4 * (2 * width + 1)))
    rows: dict[str, tuple[Settings, int]] = {
        "dense": ({"name": "dense"}, usual),
        "wide": ({"name": "dense"}, wider),
        "stored": ({"name": "lang-adapters", "adapter_size": size}, usual),
        "generated": (generated | {"hidden_size": hidden_size(width, languages)}, usual),
        "small": (generated | {"hidden_size": hidden_size(width, FEWEST)}, usual),
    }
    crowded = (width, languages) == (min(WIDTHS), max(LANGUAGES))  # the least room for each language
    return {name: row for name, row in rows.items() if crowded or name in TUNED}


def cells(materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield all rows of the map."""
    further = {SHORT: TUNED, LONGER: ("dense",), LONG: TUNED}  # in the cell with the least room for each language
    crowded = [(max(LANGUAGES), min(WIDTHS), steps) for steps in further]
    for languages, width, steps in [*product(LANGUAGES, WIDTHS, (STEPS,)), *crowded]:
        for name, (method, ffn) in methods(width, languages).items():
            if name not in further.get(steps, (name,)):
                continue
            lr, added = BEST["dense"][width], BEST[method["name"]][width]
            size = {"width": width, "languages": languages, "steps": steps, "ffn": ffn}
            yield f"{name}-d{width}-l{languages}-s{steps}", recipe(method, materials, **size, lr=lr, added=added)


def tuning(materials: Path) -> Iterator[tuple[str, Settings]]:
    """Yield the runs that choose learning rates: twelve languages, half of the steps.

    In rows `together` a generator has the learning rate of the model.
    """
    for width, name in product(WIDTHS, TUNED):
        method, ffn = methods(width, 12)[name]
        size = {"width": width, "languages": 12, "steps": STEPS // 2, "ffn": ffn}
        for rate in RATES[method["name"]]:
            lr = rate if name == "dense" else BEST["dense"][width]
            yield f"{name}-d{width}-lr{rate:g}", recipe(method, materials, **size, lr=lr, added=rate)
        if name == "generated":
            for rate in RATES["dense"]:
                yield f"together-d{width}-lr{rate:g}", recipe(method, materials, **size, lr=rate, added=rate)


def relatives(settings: Settings) -> Swaps:
    """Return directions into the common language with weights of a similar or a distant source, if they differ."""
    from polyloom.data.synthetic.corpus import FAMILY  # noqa: PLC0415 - takes a while

    if not ADDED[settings["method"]["name"]]:
        return {}
    common, *others = settings["languages"]
    swaps: dict[str, dict[str, str]] = {"similar": {}, "distant": {}}
    for one in others:
        nearest, *_, farthest = sorted((x for x in others if x != one), key=partial(FAMILY.distance, one))
        swaps["similar"][f"mt/{one}/{common}"] = f"mt/{nearest}/{common}"
        swaps["distant"][f"mt/{one}/{common}"] = f"mt/{farthest}/{common}"
    return swaps


TRIED = {name: len(rates) for name, rates in RATES.items()}
MAP = Study(
    "map", lambda materials: dict(cells(materials)), seeds=(0, 1, 2), tried=TRIED,
    baselines=("dense", "lang-adapters"), needs=(VOCABULARY,), swaps=relatives,
)  # fmt: skip
TUNING = Study("map-tuning", lambda materials: dict(tuning(materials)), seeds=(9,), tried=TRIED, needs=(VOCABULARY,))
