"""Make what studies share and no result contains: vocabularies and pretrained backbones, once each."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.study import Settings

FAMILY_BERT = {
    "model_type": "bert", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 192, "max_position_embeddings": 64, "vocab_size": 1612, "pad_token_id": 1,
    "initializer_range": 0.05,
}  # fmt: skip
FAMILY_STEPS = 8000
SEEN, ALL = 8, 24  # of the first 24 languages of the family, the backbone is pretrained on the first 8


def make(name: str, folder: Path) -> None:
    """Make a vocabulary or a backbone, unless it is there."""
    if not (folder / name).exists():
        MATERIALS[name](folder / name)


def family(count: int) -> Sequence[str]:
    """Return the first languages of the synthetic family."""
    from polyloom.data.synthetic.corpus import FAMILY  # noqa: PLC0415 - takes a while

    return FAMILY.names[:count]


def family_vocabulary(path: Path, *, languages: Sequence[str], size: int, mask: bool = False) -> None:
    """Train a vocabulary on training sentences of languages of the family."""
    from polyloom.data.catalog import resolve  # noqa: PLC0415 - slow imports
    from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary  # noqa: PLC0415

    texts = {name: [one.text for one in resolve(f"synthetic:{name}/train").records("text")] for name in languages}  # type: ignore[union-attr]
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
    """Pretrain a masked language model on the seen languages of the family; its run stays beside it."""
    from polyloom.config import parse_recipe  # noqa: PLC0415 - slow imports
    from polyloom.workflows.export import save_backbone  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415
    from polyloom.workflows.train import train_recipe  # noqa: PLC0415

    vocabulary, run = path.with_name(f"{path.name}-vocabulary"), path.with_name(f"{path.name}-run")
    if not vocabulary.exists():
        family_vocabulary(vocabulary, languages=family(SEEN), size=1600, mask=True)
    train_recipe(parse_recipe(family_pretraining(vocabulary), source=path.name), run)
    save_backbone(Run.load(run), path)


MATERIALS: Mapping[str, Callable[[Path], None]] = {
    "family-translation": _translation_vocabulary,
    "family-backbone": _family_backbone,
}
