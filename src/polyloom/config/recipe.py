"""Recipes: all settings of a run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, with_config

from polyloom.conditions import Inventory
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.check import Mistake
from polyloom.data.mixture import MixtureConfig
from polyloom.data.readers.bitext import Filter
from polyloom.methods import MethodConfig
from polyloom.model import inventory_of
from polyloom.tasks import TaskConfig
from polyloom.training.config import OptimConfig, TrainConfig

if TYPE_CHECKING:
    from polyloom.backbones import Backbone

_TRANSFORMER = {  # pre-norm, sinusoidal positions, all embeddings tied
    "model_type": "m2m_100",
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    name: _TRANSFORMER
    | {"d_model": width, "dropout": dropout}
    | {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in sizes.items()}
    for name, width, dropout, sizes in (
        ("transformer-big", 1024, 0.3, {"layers": 6, "ffn_dim": 4096, "attention_heads": 16}),
        ("transformer-base", 512, 0.1, {"layers": 6, "ffn_dim": 2048, "attention_heads": 8}),
        ("transformer-small", 256, 0.1, {"layers": 4, "ffn_dim": 1024, "attention_heads": 4}),
        ("transformer-mini", 128, 0.1, {"layers": 3, "ffn_dim": 512, "attention_heads": 4}),
    )
}
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The backbone: a pretrained model by name, a configuration, or both (then planning needs no network).

    Attributes:
        name: Model on the Hugging Face Hub, or a directory. Default: none, for a model from scratch.
        config: Keys of the model's ``config.json``, with ``model_type``. Default: those of `name`.
        preset: Configuration of an encoder-decoder from scratch, for translation; keys of `config` override it.
            Vocabulary size and special tokens come from `tokenizer`. Default: none.
        tokenizer: Tokenizer on the Hugging Face Hub, or a directory. Default: that of `name`.
        dtype: Data type of a frozen backbone. Default: ``fp32``. ``bf16`` with `attention` ``eager`` is several times
            faster on CPUs with AMX, and slower on CPUs without bf16. Trainable parameters are always fp32.
        attention: Implementation of attention. Default: Transformers' choice.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    config: dict[str, Any] | None = None
    preset: Literal["transformer-big", "transformer-base", "transformer-small", "transformer-mini"] | None = None
    tokenizer: str | None = None
    dtype: Literal["fp32", "bf16"] = "fp32"
    attention: Literal["eager", "sdpa"] | None = None

    @property
    def shape(self) -> dict[str, Any] | None:
        """The known keys of the model's ``config.json``: those of the preset and of `config`."""
        preset = PRESETS[self.preset] if self.preset else {}
        return {**preset, **(self.config or {})} or None


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpora by condition: ``pos/tr: ud:tr_boun/test``, or a list of them.

    ``mlm/*: wikipedia/*.txt`` names a corpus for every language of the recipe, ``mt/en/*`` for every other language.

    Attributes:
        train: Training corpora.
        validation: Corpora whose scores select checkpoints. Default: none; then the newest checkpoint is used.
        test: Corpora that `polyloom evaluate` scores. Default: none.
        filter: Which sentence pairs of parallel corpora are used for training, see `Filter`.
        root: Directory of the corpora that have names, and of files that are not in the current directory. Default: the
            environment variable ``POLYLOOM_DATA``.
        prepared: Folder in object storage with the encoded training corpora, as `polyloom data prepare --to` wrote
            them (``s3://…``, ``gs://…``, ``az://…``). The corpora themselves are then not needed. Default: none.
        allow: Mistakes that training would refuse, if they are meant so: ``test-in-train``, ``wrong-language``,
            ``same-language`` (two codes of one language) or ``one-label``. Default: none.
    """

    train: dict[str, tuple[str, ...]] = field(default_factory=dict)
    validation: dict[str, tuple[str, ...]] = field(default_factory=dict)
    test: dict[str, tuple[str, ...]] = field(default_factory=dict)
    filter: Filter = field(default_factory=Filter)
    root: str | None = None
    prepared: str | None = None
    allow: tuple[Mistake, ...] = ()

    def resolve(self, names: Iterable[str], check: Callable[[Path], None] = lambda _: None) -> list[Corpus]:
        """Find corpora by their names; `check` raises an error for files that may not be read."""
        return [resolve(name, root=Path(self.root) if self.root else None, check=check) for name in names]


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """Settings of one stage of a method that differ from those of the recipe."""

    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)


for _settings in (
    MethodConfig,
    TaskConfig,
    OptimConfig,
    TrainConfig,
    MixtureConfig,
    Filter,
):  # written without pydantic
    with_config(STRICT)(_settings)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a run.

    Attributes:
        backbone: The model to extend.
        method: Settings of the method.
        languages: Languages; the first one is by convention the source of transfer.
        tasks: Settings of the tasks, by name (`Task.Config`).
        directions: Pairs of languages, for methods with parameters per pair: ``en/tr``, ``en/*``, ``*/en``. Default:
            from the first language to every other.
        data: Corpora.
        mixture: How batches are drawn from the datasets.
        optim: Settings of the optimizer.
        train: Settings of training.
        stages: Settings that differ in single stages, by the name of the stage. Default: none.
        init_from: A finished run whose weights initialise this one; the optimizer starts anew. Default: none.
    """

    backbone: BackboneConfig
    method: MethodConfig
    languages: tuple[str, ...]
    tasks: dict[str, TaskConfig]
    directions: tuple[str, ...] = ()
    data: DataConfig = field(default_factory=DataConfig)
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    stages: dict[str, StageConfig] = field(default_factory=dict)
    init_from: str | None = None

    def inventory(self) -> Inventory:
        """Build the inventory that the method is built for."""
        return inventory_of(self.languages, self.tasks, self.directions or None)

    def stage(self, name: str) -> StageConfig:
        """Return the settings of a stage."""
        return self.stages.get(name) or StageConfig(optim=self.optim, train=self.train, mixture=self.mixture)


def backbone_from_recipe(
    recipe: Recipe, *, device: str = "cpu", vocabulary: Mapping[str, int] | None = None
) -> "Backbone":
    """Build or load the backbone of a recipe; on ``meta`` no weights are loaded, and with a config no network is used.

    A backbone from scratch gets the size and special tokens of `vocabulary`, unless the recipe sets them.
    """
    # Transformers takes seconds to import: not for commands that need no model.
    from polyloom.backbones import backbone_from_config, load_backbone  # noqa: PLC0415

    name, config = recipe.backbone.name, recipe.backbone.shape
    if config is not None and (device == "meta" or name is None):
        return backbone_from_config({**(vocabulary or {}), **config}, device=device)
    assert name is not None
    dtype = torch.bfloat16 if recipe.backbone.dtype == "bf16" else torch.float32
    return load_backbone(name, dtype=dtype, device=device, attention=recipe.backbone.attention)
