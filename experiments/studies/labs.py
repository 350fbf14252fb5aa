"""The two laboratories of zero-shot transfer.

The family is synthetic: its backbone is pretrained on 8 of 24 languages, and one language of each of three branches has
labels. `real` has fourteen languages of nine families, of which a small pretrained
multilingual backbone knows seven; English has labels.
"""

from experiments.materials import ALL, SEEN, family
from experiments.studies.transfer import Lab

SOURCES = ("boza", "kepa", "neno")  # of the family: the first language of each large branch
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
    rows=("full", "task-adapters", "multilingual", "madx", "madx-2", "hyperx", "hyper-stack"),
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

REAL_SEEN = ("en", "tr", "kk", "fi", "vi", "te", "id")
REAL_UNSEEN = ("fo", "hsb", "mt", "myv", "wo", "yo", "bm")
WIKIANN = {"train": 2000, "dev": 300, "test": 500}  # sentences, at most
REAL_CORPORA = {
    "mlm": {  # of treebanks only the words
        **{x: {"train": f"leipzig:{x}"} for x in (*REAL_SEEN, "yo")},
        "fo": {"train": "giellalt:fao[:1000]"},
        "hsb": {"train": "tatoeba:hsb[:1000]"},
        "mt": {"train": "ud:mt_mudt/train[:1000]"},
        "myv": {"train": "ud:myv_jr/train[:1000]"},
        "wo": {"train": "ud:wo_wtb/train[:1000]"},
        "bm": {"train": "ud:bm_crb/test[300:]"},  # it has no other split; the first 300 sentences are scored
    },
    "pos": {
        "en": {"train": "ud:en_ewt/train[:2000]", "dev": "ud:en_ewt/dev[:200]", "test": "ud:en_ewt/test[:300]"},
        "tr": {"train": "ud:tr_framenet/train[:2000]", "dev": "ud:tr_boun/dev[:200]", "test": "ud:tr_boun/test[:300]"},
        "vi": {"train": "ud:vi_vtb/train", "dev": "ud:vi_vtb/dev[:200]", "test": "ud:vi_vtb/test[:300]"},
        "te": {"train": "ud:te_mtg/train", "test": "ud:te_mtg/test"},
        "id": {"train": "ud:id_csui/train", "dev": "ud:id_gsd/dev[:200]", "test": "ud:id_gsd/test[:300]"},
        "wo": {"train": "ud:wo_wtb/train", "dev": "ud:wo_wtb/dev[:200]", "test": "ud:wo_wtb/test[:300]"},
        "fi": {"dev": "ud:fi_tdt/dev[:200]", "test": "ud:fi_tdt/test[:300]"},
        "mt": {"dev": "ud:mt_mudt/dev[:200]", "test": "ud:mt_mudt/test[:300]"},
        "kk": {"test": "ud:kk_ktb/test[:300]"},
        "fo": {"test": "ud:fo_oft/test[:300]"},
        "hsb": {"test": "ud:hsb_ufal/test[:300]"},
        "myv": {"test": "ud:myv_jr/test[:300]"},
        "yo": {"test": "ud:yo_ytb/test[:300]"},
        "bm": {"test": "ud:bm_crb/test[:300]"},
    },
    "ner": {
        **{
            x: {split: f"wikiann:{x}/{split}[:{most}]" for split, most in WIKIANN.items()}
            for x in ("en", "tr", "vi", "te", "id", "fi", "kk")
        },
        "wo": {"train": "masakhaner2:wol/train[:2000]", "test": "masakhaner2:wol/test[:300]"},
        "yo": {"test": "masakhaner2:yor/test[:300]"},
        "bm": {"test": "masakhaner2:bam/test[:300]"},
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
    halves=(("en", "tr", "wo"), ("id", "vi", "te")),
    corpus=_real,
    labels={"pos": 17, "ner": 9},
    steps={"mlm": 480, "pos": 240, "ner": 240},
    rows=(
        "full", "task-adapters", "multilingual", "madx", "madx-no-inv", "badx", "hyperx", "hyper-stack", "hyperx-pos",
        "hyperx-ner", "full-mixed1", "full-mixed2", "psf-mixed1", "psf-mixed2", "madx-mixed1", "madx-mixed2",
        "hyperx-mixed1", "hyperx-mixed2", "hyperx-no-text-mixed1", "hyperx-no-text-mixed2", "hyper-stack-mixed1",
        "hyper-stack-mixed2",
    ),
    rates={
        "full": (5e-5, 1.5e-4, 5e-4), "psf": (5e-5, 1.5e-4, 5e-4), **dict.fromkeys(TUNED_ADAPTERS, (3e-4, 1e-3, 3e-3)),
    },
    best={"full": 1.5e-4, "psf": 1.5e-4, **dict.fromkeys(TUNED_ADAPTERS, 1e-3)},
    sizes={
        "madx": {"adapter_size": 96, "task_adapter_size": 48},
        "multilingual": {"adapter_size": 96, "task_adapter_size": 48},
        "badx": {"adapter_size": 96, "task_adapter_size": 48},
        "hyperx": {"adapter_size": 48, "projection_size": 64},
        "hyper-stack": {"adapter_size": 48, "task_adapter_size": 48, "language_dropout": 0.5},
    },
    train={"rows_per_batch": 16, "max_length": 96, "dropout": False, "mlm_candidates": "corpus"},
)  # fmt: skip
LABS = {lab.name: lab for lab in (FAMILY, REAL)}
