"""The two laboratories of zero-shot transfer.

The family is synthetic: its backbone is pretrained on 8 of 24 languages, and one language of each of three branches has
labels. `real` has seven languages, of which a small pretrained multilingual backbone knows four; English has labels.
"""

from experiments.materials import ALL, SEEN, family
from experiments.studies.transfer import Lab

SOURCES = ("boza", "kepa", "neno")  # of the family: the first language of each large branch
ROWS = (  # of both laboratories
    "full", "task-adapters", "multilingual", "madx", "madx-no-inv", "badx", "hyperx", "hyper-stack", "hyperx-pos",
    "hyperx-ner", "full-mixed", "psf-mixed", "multilingual-mixed", "madx-mixed", "hyperx-mixed", "hyperx-no-text-mixed",
)  # fmt: skip
ADAPTER_RATES = (3e-3, 1e-2, 3e-2)
TUNED_ADAPTERS = ("madx", "multilingual", "badx", "hyperx", "hyper-stack")


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
    seen=lambda: family(SEEN),
    pairs=_nearest_sources,
    halves=(SOURCES, ("bame", "kumi", "nina")),
    corpus=_synthetic,
    labels={"pos": 17, "ner": 7},
    steps={"mlm": 600, "pos": 300, "ner": 300},
    rows=(*ROWS, "madx-2", "madx-more-text", "hyper-stack-more-text"),
    rates={
        "full": (6e-4, 2e-3, 6e-3), "psf": (6e-4, 2e-3, 6e-3), **dict.fromkeys(TUNED_ADAPTERS, ADAPTER_RATES),
        "hyperx": (1e-3, 3e-3, 1e-2),
    },
    best={
        "full": 2e-3, "psf": 2e-3, "madx": 1e-2, "multilingual": 1e-2, "badx": 1e-2, "hyperx": 3e-3,
        "hyper-stack": 1e-2,
    },
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
)  # fmt: skip

REAL_SEEN = ("en", "tr", "id", "vi")
REAL_UNSEEN = ("wo", "yo", "bm")
WIKIANN = {"train": 2000, "dev": 100, "test": 200}  # sentences, at most
REAL_CORPORA = {
    "mlm": {  # of treebanks only the words
        **{x: {"train": f"leipzig:{x}"} for x in (*REAL_SEEN, "yo")},
        "wo": {"train": "ud:wo_wtb/train[:1000]"},
        "bm": {"train": "ud:bm_crb/test[150:]"},  # it has no other split; the first 150 sentences are scored
    },
    "pos": {
        "en": {"train": "ud:en_ewt/train[:2000]", "dev": "ud:en_ewt/dev[:100]", "test": "ud:en_ewt/test[:150]"},
        "tr": {"dev": "ud:tr_boun/dev[:100]", "test": "ud:tr_boun/test[:150]"},
        "id": {"dev": "ud:id_gsd/dev[:100]", "test": "ud:id_gsd/test[:150]"},
        "vi": {"dev": "ud:vi_vtb/dev[:100]", "test": "ud:vi_vtb/test[:150]"},
        "wo": {"train": "ud:wo_wtb/train", "dev": "ud:wo_wtb/dev[:100]", "test": "ud:wo_wtb/test[:150]"},
        "yo": {"test": "ud:yo_ytb/test[:150]"},
        "bm": {"test": "ud:bm_crb/test[:150]"},
    },
    "ner": {
        **{x: {split: f"wikiann:{x}/{split}[:{most}]" for split, most in WIKIANN.items()} for x in REAL_SEEN},
        "wo": {"test": "masakhaner2:wol/test[:150]"},
        "yo": {"test": "masakhaner2:yor/test[:150]"},
        "bm": {"test": "masakhaner2:bam/test[:150]"},
    },
}  # fmt: skip


def _real(task: str, language: str, split: str) -> str | None:
    return REAL_CORPORA[task].get(language, {}).get(split)


REAL = Lab(
    name="real",
    backbone="me5-6l-continued",
    languages=lambda: (*REAL_SEEN, *REAL_UNSEEN),
    seen=lambda: REAL_SEEN,
    pairs=lambda: dict.fromkeys((*REAL_SEEN, *REAL_UNSEEN)[1:], "en"),
    halves=(("en", "wo"), ("tr", "id")),
    corpus=_real,
    labels={"pos": 17, "ner": 9},
    steps={"mlm": 240, "pos": 100, "ner": 100},
    tuning_steps={"mlm": 160, "pos": 70, "ner": 70},
    rows=ROWS,
    rates={
        "full": (1.5e-4, 5e-4, 1.5e-3), "psf": (1.5e-4, 5e-4, 1.5e-3),
        **dict.fromkeys(TUNED_ADAPTERS, (1e-3, 3e-3, 1e-2)), "hyperx": (3e-4, 1e-3, 3e-3),
    },
    best={"full": 5e-4, "psf": 5e-4, **dict.fromkeys(TUNED_ADAPTERS, 3e-3), "hyperx": 1e-3},
    sizes={
        "madx": {"adapter_size": 96, "task_adapter_size": 48},
        "multilingual": {"adapter_size": 96, "task_adapter_size": 48},
        "badx": {"adapter_size": 96, "task_adapter_size": 48},
        "hyperx": {"adapter_size": 48, "projection_size": 64},
        "hyper-stack": {"adapter_size": 48, "task_adapter_size": 48, "language_dropout": 0.5},
    },
    train={
        "rows_per_batch": 8, "max_length": 48, "pack_sequences": True, "dropout": False, "mlm_candidates": "corpus",
    },
)  # fmt: skip
LABS = {lab.name: lab for lab in (FAMILY, REAL)}
