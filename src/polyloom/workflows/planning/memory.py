"""Estimate the memory of a device in training: of the backbone, of what is learned, and of a micro-batch."""

import math
from collections.abc import Container, Iterable, Set
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from polyloom.backbones import Backbone
from polyloom.config import Recipe
from polyloom.config.build import empty_backbone
from polyloom.methods import build_method
from polyloom.model import Model, supported_conditions
from polyloom.nn.empty import empty_modules
from polyloom.nn.tables import Bank
from polyloom.tasks import TASKS
from polyloom.training.config import Strategy, TrainConfig
from polyloom.workflows.planning.costs import BYTES_PER_PARAMETER

LAYERS_GATHERED = 2  # FSDP gathers the next layer while one computes
LOGIT_COPIES = 3  # log-probabilities, their gradient and that of the logits, all in fp32


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of one device at the peak of a training step, in bytes.

    Attributes:
        strategy: How the devices share the work.
        gradient_checkpointing: Whether layers are recomputed in the backward pass.
        chosen: Whether the recipe has these settings.
        rows: Rows of a micro-batch on the device.
        length: Tokens of a row.
        backbone: The backbone's weights: all, or the shard of the device.
        gathered: What FSDP gathers from the other devices at once: two layers, and all that is not in layers; of what
            is trained there, gradients too.
        learned: Weights of the method and the heads, and gradients and Adam's moments of what is trained. Gradients are
            there during a forward pass only from the second micro-batch of a step on.
        generated: Weights of the conditions of a micro-batch.
        activations: What the backward pass needs of the forward pass.
        layer: What a layer that is recomputed needs for its own backward pass.
        logits: Predictions of the vocabulary, with their gradients.
    """

    strategy: Strategy
    gradient_checkpointing: bool
    chosen: bool
    rows: int
    length: int
    backbone: int
    gathered: int
    learned: int
    generated: int
    activations: int
    layer: int
    logits: int

    @property
    def total(self) -> int:
        """The sum of all parts, but of `layer` and `logits` the larger: no layer is recomputed before logits end."""
        kept = self.backbone + self.gathered + self.learned + self.generated + self.activations
        return kept + max(self.layer, self.logits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"total": self.total}


def plan_memory(recipe: Recipe, *, devices: int) -> list[DeviceMemory]:
    """Estimate the memory of each of several devices, with every strategy, with and without checkpointing.

    Examples are assumed to have `train.max_length` tokens. Weights are counted on the meta device.
    """
    model = _empty_model(recipe)
    strategies: tuple[Strategy, ...] = ("ddp", "fsdp") if devices > 1 else (recipe.train.strategy,)
    return [
        _memory(model, recipe, devices=devices, strategy=strategy, checkpointing=checkpointing)
        for strategy in strategies
        for checkpointing in (False, True)
    ]


def _empty_model(recipe: Recipe) -> Model:
    backbone = empty_backbone(recipe.backbone)
    if recipe.backbone.dtype == "bf16":
        backbone.to(torch.bfloat16)
    if recipe.backbone.attention:
        backbone.model.set_attn_implementation(recipe.backbone.attention)
    with empty_modules():
        method = build_method(recipe.method, shape=backbone.shape, inventory=recipe.inventory())
        return Model(backbone, method, tasks=recipe.tasks)


def _memory(model: Model, recipe: Recipe, *, devices: int, strategy: Strategy, checkpointing: bool) -> DeviceMemory:
    train, backbone, shape = recipe.train, model.backbone, model.backbone.shape
    rows, length = _rows(train, devices, model.backbone.max_length)
    size = 2 if "bf16" in (recipe.backbone.dtype, train.precision) else 4
    per_layer = rows * length * layer_bytes(backbone, size=size, length=length)
    input_bytes = rows * length * shape.width * size
    stages = [{p for group in stage.trains for p in model.group(group)} for stage in model.stages()]
    inner = set(backbone.parameters())
    trained_inner = inner & set().union(*stages)
    shards = devices if strategy == "fsdp" else 1
    learned_shards = shards if trained_inner else 1
    gathered = gathered_bytes(backbone, inner) + gathered_bytes(backbone, trained_inner)  # weights, gradients
    learned = {*model.method.parameters(), *model.heads.parameters()}
    banks = {p for module in model.modules() if isinstance(module, Bank) for p in module.parameters()}

    def learned_bytes(parameters: Set[nn.Parameter]) -> int:
        return shard_bytes(parameters - banks, learned_shards) + shard_bytes(parameters & banks, 1)

    copies = 4 if devices > 1 else 3  # gradient and two moments; a message to the other devices has the gradient again
    return DeviceMemory(
        strategy=strategy,
        gradient_checkpointing=checkpointing,
        chosen=(strategy, checkpointing) == (train.strategy, train.gradient_checkpointing),
        rows=rows,
        length=length,
        backbone=shard_bytes(backbone.parameters(), shards),
        gathered=gathered if shards > 1 else 0,
        learned=learned_bytes(learned) + copies * max(map(learned_bytes, stages)),
        generated=_generated_bytes(model, rows=rows, datasets=recipe.mixture.datasets_per_batch, size=size),
        activations=len(shape.sites) * (input_bytes if checkpointing else per_layer),
        layer=per_layer if checkpointing else 0,
        logits=_logit_bytes(model, recipe, tokens=rows * length),
    )


def _rows(train: TrainConfig, devices: int, max_length: int) -> tuple[int, int]:
    """Return the rows of a micro-batch on a device, and their length."""
    length = train.max_length or max_length
    rows = train.rows_per_batch or (max(1, train.tokens_per_batch // length) if train.tokens_per_batch else 32)
    micro_batches = min(train.grad_accum_steps, math.ceil(rows / devices))
    return math.ceil(rows / micro_batches / devices), length


def shard_bytes(parameters: Iterable[nn.Parameter], shards: int) -> int:
    """Return the bytes of the largest shard. FSDP splits every parameter along its first dimension."""
    whole = (p for p in parameters if p.numel())  # a bank may have no rows yet
    return sum(p.element_size() * p[:1].numel() * math.ceil(len(p) / shards) for p in whole)


def gathered_bytes(backbone: Backbone, parameters: Container[nn.Parameter]) -> int:
    """Return the bytes of parameters that FSDP gathers at once: of a layer and the next, and all outside of layers."""
    layers = [shard_bytes((p for p in layer.parameters() if p in parameters), 1) for layer in backbone.layers]
    everything = shard_bytes((p for p in backbone.parameters() if p in parameters), 1)
    return LAYERS_GATHERED * max(layers) + everything - sum(layers)


def layer_bytes(backbone: Backbone, *, size: int, length: int) -> int:
    """Return the bytes that a layer keeps of a token for its backward pass.

    These are the inputs and outputs of its linear layers. In bf16, its two norms keep a copy in fp32; with ``eager``
    attention, every head keeps its probabilities of all tokens, in fp32 too.
    """
    linears = [m for m in backbone.layers[-1].modules() if isinstance(m, nn.Linear)]
    kept = size * sum(linear.in_features + linear.out_features for linear in linears)
    norms = 2 * 4 * backbone.shape.width if size == 2 else 0
    config = backbone.model.config
    eager = config._attn_implementation == "eager"  # noqa: SLF001 - Transformers has no other name for it
    return kept + norms + (config.num_attention_heads * length * (4 if size == 4 else 6) if eager else 0)


def _generated_bytes(model: Model, *, rows: int, datasets: int, size: int) -> int:
    """Return the bytes of the weights of a micro-batch: made once for a condition, and copied to the rows."""
    conditions = supported_conditions(model.method)
    with empty_modules():
        one = BYTES_PER_PARAMETER * model.weights(conditions[:1]).num_parameters()
    distinct = min(rows, datasets, len(conditions))
    copies = rows if distinct > 1 else 0
    cast = max(copies, 1) if size == 2 else 0
    return 2 * distinct * one + copies * one + cast * one // 2


def _logit_bytes(model: Model, recipe: Recipe, *, tokens: int) -> int:
    """Return the bytes of the vocabulary's logits, of the task that predicts the most tokens."""
    vocabulary = int(model.backbone.model.config.vocab_size)
    shares = [getattr(recipe.tasks[n], "mask_probability", 1.0) for n in recipe.tasks if TASKS[n].uses_lm_head]
    return math.ceil(LOGIT_COPIES * 4 * tokens * max(shares, default=0.0)) * vocabulary
