"""Recipes: all settings of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config

from polyloom.conditions import Inventory
from polyloom.data.check import Mistake
from polyloom.data.mixture import MixtureConfig
from polyloom.data.readers.bitext import Filter
from polyloom.errors import ConfigError
from polyloom.methods import MethodConfig
from polyloom.model import inventory_of
from polyloom.tasks import TaskConfig
from polyloom.training.config import OptimConfig, TrainConfig

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
# `use_attribute_docstrings`: the line under a setting is its description in the JSON schema.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The backbone: a pretrained model by name, a configuration, or both (then planning needs no network)."""

    name: Annotated[str, Field(min_length=1)] | None = None
    """Model on the Hugging Face Hub, or a directory. Leave it out to train a model from scratch."""
    config: dict[str, Any] | None = None
    """Keys of the model's ``config.json``, with ``model_type``. Default: those of `name`."""
    preset: Literal["transformer-big", "transformer-base", "transformer-small", "transformer-mini"] | None = None
    """Configuration of an encoder-decoder from scratch, for translation; keys of `config` override it. Vocabulary size
    and special tokens come from `tokenizer`."""
    tokenizer: str | None = None
    """Tokenizer on the Hugging Face Hub, or a directory. Default: that of `name`."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Data type of a frozen backbone; trainable parameters are always fp32. ``bf16`` with `attention` ``eager`` is
    several times faster on CPUs with AMX, and slower on CPUs without bf16."""
    attention: Literal["eager", "sdpa"] | None = None
    """Implementation of attention. Default: Transformers' choice."""

    @property
    def model_config(self) -> dict[str, Any] | None:
        """The known keys of the model's ``config.json``: those of the preset and of `config`."""
        preset = PRESETS[self.preset] if self.preset else {}
        return {**preset, **(self.config or {})} or None

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer: `tokenizer`, or by default `name`."""
        name = self.tokenizer or self.name
        if name is None:
            raise ConfigError("recipe", ["backbone.tokenizer: missing; a backbone from a config alone has none."])
        return name


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpora by condition: ``pos/tr: ud:tr_boun/test``, or a list of them.

    ``mlm/*: wikipedia/*.txt`` names a corpus for every language of the recipe, ``mt/en/*`` for every other language.
    """

    train: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Training corpora."""
    validation: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Corpora whose scores select checkpoints. Without any, the newest checkpoint is used."""
    test: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Corpora that ``polyloom evaluate`` scores."""
    filter: Filter = field(default_factory=Filter)
    """Which sentence pairs of parallel corpora are used for training."""
    root: str | None = None
    """Directory of the corpora that have names, and of files that are not in the current directory. Default: the
    environment variable ``POLYLOOM_DATA``."""
    prepared: str | None = None
    """Folder in object storage with the encoded training corpora, as ``polyloom data prepare --to`` wrote them
    (``s3://…``, ``gs://…``, ``az://…``). The corpora themselves are then not needed."""
    allow: tuple[Mistake, ...] = ()
    """Mistakes that training refuses, if they are intentional: ``test-in-train``, ``wrong-language``,
    ``same-language`` (two codes of one language) or ``one-label``."""


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """Settings of one stage of a method that differ from those of the recipe."""

    optim: OptimConfig = field(default_factory=OptimConfig)
    """Settings of the optimizer in this stage."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Settings of training in this stage."""
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    """How batches of this stage are drawn from the datasets."""


# These are defined in packages that do not import pydantic.
for _settings in (MethodConfig, TaskConfig, OptimConfig, TrainConfig, MixtureConfig, Filter):
    with_config(STRICT)(_settings)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a run."""

    backbone: BackboneConfig
    """The model to extend."""
    method: MethodConfig
    """The method, by its name, with its settings."""
    languages: tuple[str, ...]
    """Languages; the first one is by convention the source of transfer."""
    tasks: dict[str, TaskConfig]
    """The tasks, each with its settings."""
    directions: tuple[str, ...] = ()
    """Pairs of languages, for methods with parameters per pair: ``en/tr``, ``en/*``, ``*/en``. Default: from the first
    language to every other."""
    data: DataConfig = field(default_factory=DataConfig)
    """The corpora."""
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    """How batches are drawn from the datasets."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Learning rates and their schedule, and what else the optimizer needs."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How long and on what batches models are trained, and when they are validated and saved."""
    stages: dict[str, StageConfig] = field(default_factory=dict)
    """Settings that differ in single stages, by the name of the stage."""
    init_from: str | None = None
    """A finished run whose weights initialise this one; the optimizer starts anew."""

    def inventory(self) -> Inventory:
        """Build the inventory that the method is built for."""
        return inventory_of(self.languages, self.tasks, self.directions or None)

    def stage(self, name: str) -> StageConfig:
        """Return the settings of a stage."""
        return self.stages.get(name) or StageConfig(optim=self.optim, train=self.train, mixture=self.mixture)
