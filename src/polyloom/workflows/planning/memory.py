"""Estimate the memory of a device in training: of the backbone, of what is learned, and of a micro-batch."""

import math
from collections.abc import Container, Iterable, Set
from dataclasses import asdict, dataclass
from itertools import product
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
from polyloom.training.config import Strategy
from polyloom.workflows.planning.costs import BYTES_PER_PARAMETER

LAYERS_GATHERED = 2  # FSDP gathers the next layer while one computes
LOGIT_COPIES = 3  # log-probabilities, their gradient and that of the logits, all in fp32


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of one device at the peak of a training step, in bytes."""

    strategy: Strategy
    """How the devices share the work."""
    gradient_checkpointing: bool
    """Whether layers are recomputed in the backward pass."""
    chosen: bool
    """Whether the recipe has these settings."""
    rows: int
    """Rows of a micro-batch on the device."""
    length: int
    """Tokens of a row."""
    backbone: int
    """The backbone's weights: all, or the shard of the device."""
    gathered: int
    """What FSDP gathers from the other devices at once: two layers, and all that is not in layers; of what is trained
    there, gradients too."""
    learned: int
    """Weights of the method and the heads, and gradients and Adam's moments of what is trained. Gradients are there
    during a forward pass only from the second micro-batch of a step on."""
    generated: int
    """Weights of the conditions of a micro-batch."""
    activations: int
    """What the backward pass needs of the forward pass."""
    layer: int
    """What a layer that is recomputed needs for its own backward pass."""
    logits: int
    """Predictions of the vocabulary, with their gradients."""

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
    model, train = _empty_model(recipe), recipe.train
    strategies: tuple[Strategy, ...] = ("ddp", "fsdp") if devices > 1 else (train.strategy,)
    backbone, shape = model.backbone, model.backbone.shape
    size = 2 if "bf16" in (recipe.backbone.dtype, train.precision) else 4  # bytes of an activation

    # A micro-batch on one device.
    length = train.max_length or backbone.max_length
    batch = train.rows_per_batch or (max(1, train.tokens_per_batch // length) if train.tokens_per_batch else 32)
    micro_batches = min(train.grad_accum_steps, math.ceil(batch / devices))
    rows = math.ceil(batch / micro_batches / devices)
    layer = rows * length * layer_bytes(backbone, size=size, length=length)
    layer_input = rows * length * shape.width * size

    # Weights of its conditions are computed once for a condition, kept for the backward pass with their gradient, and
    # copied to the rows if these differ; autocast casts the copies.
    conditions = supported_conditions(model.method)
    with empty_modules():
        one_condition = BYTES_PER_PARAMETER * model.weights(conditions[:1]).num_parameters()
    distinct = min(rows, recipe.mixture.datasets_per_batch, len(conditions))
    copies = rows if distinct > 1 else 0
    casts = max(copies, 1) if size == 2 else 0
    generated = 2 * distinct * one_condition + copies * one_condition + casts * one_condition // 2

    # Logits of the vocabulary, of the task that predicts the most tokens.
    predicted = [getattr(recipe.tasks[n], "mask_probability", 1.0) for n in recipe.tasks if TASKS[n].uses_lm_head]
    bytes_per_word = math.ceil(LOGIT_COPIES * 4 * rows * length * max(predicted, default=0.0))
    logits = bytes_per_word * int(backbone.model.config.vocab_size)

    # FSDP shards the backbone, and what is learned with it. Banks are copied: their gradients are sparse.
    stages = [{p for group in stage.trains for p in model.group(group)} for stage in model.stages()]
    inner = set(backbone.parameters())
    trained_inner = inner & set().union(*stages)
    gathered = gathered_bytes(backbone, inner) + gathered_bytes(backbone, trained_inner)  # weights, gradients
    banks = {p for module in model.modules() if isinstance(module, Bank) for p in module.parameters()}
    copies_learned = 4 if devices > 1 else 3  # gradient, two moments; a message to other devices has the gradient again
    all_learned = {*model.method.parameters(), *model.heads.parameters()}

    # Stages follow each other, so the largest one needs the most.
    plans = []
    for strategy, checkpointing in product(strategies, (False, True)):
        shards = devices if strategy == "fsdp" else 1
        bytes_of_stages = [_learned_bytes(stage, banks, shards if trained_inner else 1) for stage in stages]
        learned = _learned_bytes(all_learned, banks, shards if trained_inner else 1)
        plan = DeviceMemory(
            strategy=strategy,
            gradient_checkpointing=checkpointing,
            chosen=(strategy, checkpointing) == (train.strategy, train.gradient_checkpointing),
            rows=rows,
            length=length,
            backbone=shard_bytes(backbone.parameters(), shards),
            gathered=gathered if shards > 1 else 0,
            learned=learned + copies_learned * max(bytes_of_stages),
            generated=generated,
            activations=len(shape.sites) * (layer_input if checkpointing else layer),
            layer=layer if checkpointing else 0,
            logits=logits,
        )
        plans.append(plan)
    return plans


def _learned_bytes(parameters: Set[nn.Parameter], banks: Set[nn.Parameter], shards: int) -> int:
    """Return the bytes of parameters on a device: a shard of each, but banks as a whole."""
    return shard_bytes(parameters - banks, shards) + shard_bytes(parameters & banks, 1)


def _empty_model(recipe: Recipe) -> Model:
    backbone = empty_backbone(recipe.backbone)
    if recipe.backbone.dtype == "bf16":
        backbone.to(torch.bfloat16)
    if recipe.backbone.attention:
        backbone.model.set_attn_implementation(recipe.backbone.attention)
    with empty_modules():
        method = build_method(recipe.method, shape=backbone.shape, inventory=recipe.inventory())
        return Model(backbone, method, tasks=recipe.tasks)


def shard_bytes(parameters: Iterable[nn.Parameter], shards: int) -> int:
    """Return the bytes of the largest shard. FSDP splits every parameter along its first dimension."""
    nonempty = (p for p in parameters if p.numel())  # a bank may have no rows yet
    return sum(p.element_size() * p[:1].numel() * math.ceil(len(p) / shards) for p in nonempty)


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
    linear_bytes = size * sum(linear.in_features + linear.out_features for linear in linears)
    norms = 2 * 4 * backbone.shape.width if size == 2 else 0
    config = backbone.model.config
    eager = config._attn_implementation == "eager"  # noqa: SLF001 - Transformers has no other name for it
    return linear_bytes + norms + (config.num_attention_heads * length * (4 if size == 4 else 6) if eager else 0)
