"""Make what studies share and no result contains: vocabularies and pretrained backbones, once each."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments import pretraining
from experiments.smollm2 import make_smollm2
from experiments.storage import write_result
from experiments.study import Settings
from polyloom.errors import PolyloomError

FAMILY_BERT = {
    "model_type": "bert", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 192, "max_position_embeddings": 64, "vocab_size": 1612, "pad_token_id": 1,
    "initializer_range": 0.05,
}  # fmt: skip
FAMILY_STEPS = 8000
CONTINUED_STEPS = 2000
RAW_TEXT = ("leipzig", "tatoeba", "giellalt")  # collections
KEPT_UNSEEN = ("fao", "hsb", "mlt", "wol", "yo")  # so that laboratories can have unseen languages
SEEN, ALL = 8, 24  # of the first 24 languages of the family, the backbone is pretrained on the first 8


def make(name: str, folder: Path, results: Path) -> None:
    """Make a vocabulary or a backbone, unless it is there, and report the pretraining of a backbone."""
    if not (folder / name).exists():
        MATERIALS[name](folder / name)
    report = results / pretraining.STUDY / f"{name}-0.json"
    if (run := _run_of(folder / name)).exists() and not report.exists():
        write_result(report, {"row": name} | pretraining.report(run))


def family(count: int) -> Sequence[str]:
    """Return the first languages of the synthetic family."""
    from polyloom.data.synthetic.corpus import FAMILY  # noqa: PLC0415 - takes a while

    return FAMILY.names[:count]


def family_vocabulary(path: Path, *, languages: Sequence[str], size: int, mask: bool = False) -> None:
    """Train a vocabulary on training sentences of languages of the family."""
    from polyloom.data.catalog import resolve  # noqa: PLC0415 - slow imports
    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415

    texts = {name: [one.text for one in resolve(f"synthetic:{name}/train").records("text")] for name in languages}  # type: ignore[attr-defined]
    train_vocabulary(texts, path, config=VocabularyConfig(size=size, mask=mask), languages=list(languages))


def _translation_vocabulary(path: Path) -> None:
    """Train one vocabulary for translation between all languages of the family."""
    family_vocabulary(path, languages=family(40), size=4000)


def family_pretraining(vocabulary: Path) -> Settings:
    """Build the recipe of the family's backbone."""
    languages = family(SEEN)
    return {
        "backbone": {"config": FAMILY_BERT, "tokenizer": str(vocabulary)},
        "method": {"name": "full"},
        "languages": list(languages),
        "tasks": {"mlm": {}},
        "data": {
            "train": {f"mlm/{name}": f"synthetic:{name}/train" for name in languages},
            "validation": {f"mlm/{name}": f"synthetic:{name}/dev" for name in languages},
        },
        "mixture": {"datasets_per_batch": 8},
        "optim": {"lr": 3e-3, "warmup_steps": 100},
        "train": {
            "steps": FAMILY_STEPS, "evaluate_every": FAMILY_STEPS // 8, "rows_per_batch": 64, "max_length": 48,
            "grad_accum_steps": 4, "dropout": False,
        },
    }  # fmt: skip


def _family_backbone(path: Path) -> None:
    """Pretrain a masked language model on the seen languages of the family."""
    vocabulary = path.with_name(f"{path.name}-vocabulary")
    if not vocabulary.exists():
        family_vocabulary(vocabulary, languages=family(SEEN), size=1600, mask=True)
    _pretrain(family_pretraining(vocabulary), path)


def continued_pretraining(backbone: str, text: Mapping[str, str]) -> Settings:
    """Build the recipe that continues a backbone as a masked language model; 50 lines of each corpus are held out."""
    return {
        "backbone": {"name": backbone},
        "method": {"name": "full"},
        "languages": list(text),
        "tasks": {"mlm": {}},
        "data": {
            "train": {f"mlm/{name}": f"{corpus}[50:]" for name, corpus in text.items()},
            "validation": {f"mlm/{name}": f"{corpus}[:50]" for name, corpus in text.items()},
        },
        "mixture": {"temperature": 2.0, "datasets_per_batch": 8},
        "optim": {"lr": 3e-4, "warmup_steps": 100},
        "train": {
            "steps": CONTINUED_STEPS, "evaluate_every": CONTINUED_STEPS // 4, "rows_per_batch": 16, "max_length": 64,
            "pack_sequences": True, "dropout": False,
        },
    }  # fmt: skip


def raw_text() -> dict[str, str]:
    """Return all collections of raw text beside the data, by language, without the languages that stay unseen."""
    from polyloom.data.catalog import corpus_files, data_root  # noqa: PLC0415 - slow imports

    items = {
        f"{file.item}-{name}": f"{name}:{file.item}"
        for name in RAW_TEXT
        for file in corpus_files(name, root=data_root())
    }
    return {name: corpus for name, corpus in items.items() if corpus.partition(":")[2] not in KEPT_UNSEEN}


def _continued_backbone(path: Path) -> None:
    """Continue the backbone that POLYLOOM_BACKBONE names on all raw text."""
    if not (backbone := os.environ.get("POLYLOOM_BACKBONE")):
        raise PolyloomError("study real: set POLYLOOM_BACKBONE to a pretrained masked language model, such as me5-6l.")
    _pretrain(continued_pretraining(backbone, raw_text()), path)


def _pretrain(recipe: Settings, path: Path) -> None:
    """Train or resume a backbone; its run stays beside it."""
    from polyloom.config import parse_recipe  # noqa: PLC0415 - slow imports
    from polyloom.loading import load_run_dir  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    train_recipe(parse_recipe(recipe, source=path.name), _run_of(path))
    run = load_run_dir(_run_of(path))
    run.model.backbone.model.save_pretrained(path)
    run.tokenizer.save_pretrained(path)


def _run_of(backbone: Path) -> Path:
    return backbone.with_name(f"{backbone.name}-run")


MATERIALS: Mapping[str, Callable[[Path], None]] = {
    "family-translation": _translation_vocabulary,
    "family-backbone": _family_backbone,
    "me5-6l-continued": _continued_backbone,
    "smollm2": make_smollm2,
}
