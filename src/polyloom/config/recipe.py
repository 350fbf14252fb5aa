"""Recipes: everything a run is made from, in one place."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, with_config

from polyloom.conditions import Inventory
from polyloom.data.catalog import Corpus, resolve
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
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which model is extended: by name, by configuration, or both (then nothing is looked up to plan).

    Attributes:
        name: On the Hugging Face Hub, or a directory.
        config: Keys of its ``config.json``, with ``model_type``.
        preset: An encoder-decoder from scratch, for translation; keys of `config` go before its own. Sizes and special
            tokens of the vocabulary come from `tokenizer`.
        tokenizer: On the Hugging Face Hub, or a directory; that of `name` by default.
        dtype: Of a frozen backbone; ``bf16`` with `attention` ``eager`` is several times faster on CPUs with AMX, and
            slower on those without bf16. What learns is in fp32 in any case.
        attention: How attention is computed; Transformers' choice by default.
    """

    name: Annotated[str, Field(min_length=1)] | None = None
    config: dict[str, Any] | None = None
    preset: Literal["transformer-big", "transformer-base", "transformer-small", "transformer-mini"] | None = None
    tokenizer: str | None = None
    dtype: Literal["fp32", "bf16"] = "fp32"
    attention: Literal["eager", "sdpa"] | None = None

    @property
    def shape(self) -> dict[str, Any] | None:
        """All that is known of its ``config.json``."""
        preset = PRESETS[self.preset] if self.preset else {}
        return {**preset, **(self.config or {})} or None


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpora are read, by condition: ``pos/tr: ud:tr_boun/test``, or a list of them.

    Attributes:
        train: What is learnt from.
        validation: What selects checkpoints.
        test: What `polyloom evaluate` scores.
        filter: Which pairs of bitext are learnt from.
        root: Where corpora with names lie; ``POLYLOOM_DATA`` by default.
    """

    train: dict[str, tuple[str, ...]] = field(default_factory=dict)
    validation: dict[str, tuple[str, ...]] = field(default_factory=dict)
    test: dict[str, tuple[str, ...]] = field(default_factory=dict)
    filter: Filter = field(default_factory=Filter)
    root: str | None = None

    def resolve(self, names: Iterable[str]) -> list[Corpus]:
        """Find corpora by their names."""
        return [resolve(name, root=Path(self.root) if self.root else None) for name in names]


@with_config(STRICT)
@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """What is different in one stage of a method: keys of these sections."""

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
    """Everything a run is made from.

    Attributes:
        backbone: The model to extend.
        method: Settings of the method.
        languages: Languages; the first is by convention the source of transfer.
        tasks: Settings of the tasks, by name; each task has its own (`Task.Config`).
        directions: Pairs for methods that store something per pair: ``en/tr``, ``en/*``, ``*/en``.
        data: Which corpora are read.
        mixture: Which examples come when.
        optim: How weights are updated.
        train: What a run consists of.
        stages: What is different in single stages, by their names.
        init_from: A finished run to go on from, with its weights but a fresh optimizer.
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
        """The settings of a stage."""
        return self.stages.get(name) or StageConfig(optim=self.optim, train=self.train, mixture=self.mixture)


def backbone_from_recipe(
    recipe: Recipe, *, device: str = "cpu", vocabulary: Mapping[str, int] | None = None
) -> "Backbone":
    """Build or load the backbone of a recipe; on ``meta`` neither weights nor, with a config, network are needed.

    A `vocabulary` (its size and special tokens) goes into one from scratch, where the recipe does not say otherwise.
    """
    # Transformers takes seconds to import: not for commands that need no model.
    from polyloom.backbones import backbone_from_config, load_backbone  # noqa: PLC0415

    name, config = recipe.backbone.name, recipe.backbone.shape
    if config is not None and (device == "meta" or name is None):
        return backbone_from_config({**(vocabulary or {}), **config}, device=device)
    assert name is not None
    dtype = torch.bfloat16 if recipe.backbone.dtype == "bf16" else torch.float32
    return load_backbone(name, dtype=dtype, device=device, attention=recipe.backbone.attention)
