"""Build what settings name: the backbone, the corpora, and the tasks of a model with their tokens.

Here a recipe meets the disk and the Hub. What is built is handed down; nothing below reads a recipe again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from polyloom.backbones import Backbone, backbone_from_config, load_backbone
from polyloom.conditions import Condition
from polyloom.config.recipe import BackboneConfig, DataConfig
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.corpus_stats import CorpusRole, Role
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.typology import Typology, read_typology
from polyloom.errors import ConfigError, DataError
from polyloom.model import Model
from polyloom.tasks import TaskConfig
from polyloom.tasks.translation import end_of


def find_corpora(
    data: DataConfig, names: Iterable[str], *, check: Callable[[Path], None] = lambda _: None
) -> list[Corpus]:
    """Find corpora by their names; `check` raises an error for files that may not be read."""
    return [resolve(name, root=Path(data.root) if data.root else None, check=check) for name in names]


@dataclass(frozen=True)
class RecipeCorpora:
    """The corpora of a recipe, found on this machine."""

    train: Mapping[Condition, Sequence[Corpus]]
    """Training corpora by condition; none if the recipe names encoded ones in object storage."""
    validation: Mapping[Condition, Sequence[Corpus]]
    """Validation corpora by condition."""
    test: Mapping[Condition, Sequence[Corpus]]
    """Test corpora by condition."""
    missing_tests: Sequence[DataError] = ()
    """Why some test corpora cannot be found; training does not need them."""

    def roles(self) -> list[CorpusRole]:
        """List all corpora with their roles."""
        by_role: dict[Role, Mapping[Condition, Sequence[Corpus]]]
        by_role = {"train": self.train, "validation": self.validation, "test": self.test}
        return [
            CorpusRole(condition.task, str(condition).partition("/")[2], role, corpus)
            for role, by_condition in by_role.items()
            for condition, corpora in by_condition.items()
            for corpus in corpora
        ]


def find_all_corpora(data: DataConfig) -> RecipeCorpora:
    """Find the corpora of a recipe."""
    train = {} if data.prepared else data.train
    test: dict[Condition, list[Corpus]] = {}
    missing = []
    for name, corpora in data.test.items():
        try:
            test[Condition.parse(name)] = find_corpora(data, corpora)
        except DataError as error:
            missing.append(error)
    return RecipeCorpora(
        train={Condition.parse(name): find_corpora(data, corpora) for name, corpora in train.items()},
        validation={Condition.parse(name): find_corpora(data, corpora) for name, corpora in data.validation.items()},
        test=test,
        missing_tests=missing,
    )


def empty_backbone(settings: BackboneConfig) -> Backbone:
    """Build a backbone on the meta device, without weights; without network if its configuration is known.

    A preset gets the vocabulary size of its tokenizer, if that is a local folder.
    """
    config = settings.model_config
    if config is None:
        assert settings.name is not None  # parsing has checked that one of them is there
        return load_backbone(settings.name, device="meta", attention=settings.attention)
    if settings.preset and settings.tokenizer and Path(settings.tokenizer).is_dir():
        config = {"vocab_size": load_tokenizer(settings.tokenizer).vocab_size} | config
    return backbone_from_config(config, device="meta")


def build_backbone(settings: BackboneConfig, tokenizer: Tokenizer, *, seed: int) -> Backbone:
    """Load a pretrained backbone, or build one from scratch; its random weights are a function of the seed."""
    torch.manual_seed(seed)
    config = settings.model_config
    if settings.name is not None:
        dtype = torch.bfloat16 if settings.dtype == "bf16" else torch.float32
        backbone = load_backbone(settings.name, dtype=dtype, attention=settings.attention)
    elif settings.preset is not None:
        # A model from scratch takes its vocabulary from the tokenizer, unless the settings say otherwise.
        end_id = end_of(tokenizer)
        vocabulary = {
            "vocab_size": tokenizer.vocab_size,
            "pad_token_id": tokenizer.pad_id,
            "bos_token_id": end_id if tokenizer.bos_id is None else tokenizer.bos_id,
            "eos_token_id": end_id,
            "decoder_start_token_id": end_id,
        }
        backbone = backbone_from_config(vocabulary | (config or {}))
    else:
        assert config is not None  # parsing has checked that one of them is there
        backbone = backbone_from_config(config)

    size = int(backbone.model.get_input_embeddings().weight.shape[0])
    if tokenizer.vocab_size > size:
        mistake = f"the tokenizer has {tokenizer.vocab_size} tokens, the backbone embeddings for {size}."
        hint = f"For one from a config: `vocab_size: {tokenizer.vocab_size}`."
        raise ConfigError("recipe", [f"backbone: {mistake} {hint}"])
    # Every row of a translation has its own limit, which a limit of the model's files would override.
    if settings.preset is None and backbone.model.can_generate():
        backbone.model.generation_config.max_length = None
    return backbone


def configure_tasks(
    model: Model,
    tasks: Mapping[str, TaskConfig],
    tokenizer: Tokenizer,
    *,
    pretrained: bool,
    conditions: Iterable[str] = (),
) -> None:
    """Configure the tasks of a model for its backbone, such as their language tokens.

    Raises:
        ConfigError: Something is missing for one of the `conditions`.
    """
    for name, task in model.tasks.items():
        if name in tasks:
            config = model.backbone.model.config
            task.configure(tasks[name], backbone=config, pretrained=pretrained, tokenizer=tokenizer)
    for condition in map(Condition.parse, conditions):
        if condition.task in model.tasks:
            model.tasks[condition.task].check(condition, tokenizer)


def set_typology(model: Model, languages: Sequence[str], *, root: str | None, typology: Typology | None = None) -> None:
    """Set the features of languages, if the method uses them; by default those of the tables beside the corpora."""
    if (size := model.method.typology_size) is None:
        return
    typology = typology or read_typology(root)
    if typology is None:
        raise ConfigError("recipe", ["method.typology: there are no tables of features, in meta/ beside the corpora."])
    model.method.set_features(typology.vectors(languages, size))
