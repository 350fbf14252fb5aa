"""Hyper-Stack: MAD-X's stack of language and task adapters, with language adapters from a hypernetwork.

As in MAD-X, language adapters are trained on raw text, then task adapters on top of them, while everything that depends
on the language is frozen. The language adapter of a layer is a common adapter of that layer plus a difference that the
hypernetwork generates from language and layer. The difference is zero before training: all languages begin with the
common adapter and learn only what sets them apart. The inputs of the hypernetwork are normalised, so that the size of
an embedding does not change the scale of what is generated (compare Ortiz et al. 2023, magnitude invariant
parametrizations). The backbone's language-modelling head is trained with the language adapters.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyloom.conditions import ConditionIds, Inventory
from polyloom.methods.base import Stage, check, check_positive
from polyloom.methods.madx import StackedConfig, StackedMethod, stacked_bank
from polyloom.nn.blocks import BLOCKS, TensorSpec
from polyloom.nn.hypernetwork import Hypernetwork, OutputProjections
from polyloom.nn.tables import GrowingEmbedding, normal_init
from polyloom.weights import BackboneShape, Block, Weights


@dataclass(frozen=True, kw_only=True)
class HyperStackConfig(StackedConfig):
    """Settings of Hyper-Stack."""

    name: ClassVar[str] = "hyper-stack"
    adapter_size: int = 48
    """Bottleneck size of the generated language adapters."""
    projection_size: int = 16
    """Input size of the output projections. It decides the number of parameters."""
    hidden_size: int = 64
    """Size of the projector's hidden layer."""
    embedding_size: int = 64
    """Size of the embeddings of languages and layers."""
    generated: Literal["adapters", "units"] = "adapters"
    """What is generated for a language. ``adapters``: a difference of every tensor to the common adapter.
    ``units``: one factor for each unit of the common adapter (compare Zhyper), which takes a hundredth of the
    hypernetwork's parameters."""
    stored_size: int = 0
    """Bottleneck size of an adapter that each language stores beside the generated one. Default: 0, for none. A few
    units give a language room for what the hypernetwork cannot express."""
    language_dropout: float = 0.0
    """Share of training batches in which labelled data has the language adapter of a random language, so that task
    adapters fit all languages."""
    invertible: bool = False
    """Whether to store an invertible adapter for each language."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "projection_size", "hidden_size", "embedding_size")
        check(
            self, self.language_adapters, "method.language_adapters: false is an ablation of madx, not of this method."
        )
        check(self, self.stored_size >= 0, f"method.stored_size: {self.stored_size} is negative.")
        share = self.language_dropout
        check(self, 0.0 <= share < 1.0, f"method.language_dropout: {share} is not in [0, 1).")


class HyperStack(StackedMethod):
    """A method that generates language adapters and stacks stored task adapters on top."""

    config_type = HyperStackConfig
    paper = "this library"
    summary = "language adapters from a hypernetwork, task adapters stacked on top"
    keyed_by = "language"
    decoder_depends_on = ("task", "target")
    config: HyperStackConfig

    def __init__(self, config: HyperStackConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        size, init, tensors = config.embedding_size, normal_init(1.0), self.block_tensors()
        num_sites = len(self.language_sites)
        self.common_adapter = stacked_bank("fixed", 1, num_sites, tensors)
        self.embeddings = nn.ModuleDict(
            {
                "language": GrowingEmbedding("language", len(self.languages), size=size, init=init),
                "layer": GrowingEmbedding("fixed", num_sites, size=size, init=init),
            }
        )
        trunk = nn.Sequential(
            nn.Linear(2 * size, config.hidden_size),
            nn.ReLU(),
            nn.Linear(config.hidden_size, config.projection_size),
            nn.LayerNorm(config.projection_size, elementwise_affine=False),
        )
        # What is generated is a difference, so its mean is zero whatever the tensor starts from.
        if config.generated == "units":
            up_projections = BLOCKS[config.block].up_projections(tensors)
            differences = {name: TensorSpec(tensors[name].shape[-1:], start=0.0) for name in up_projections}
        else:
            differences = {name: spec._replace(start=0.0) for name, spec in tensors.items()}
        projections = OutputProjections(config.projection_size, tensors=differences, rescale=False, bias=False)
        for _, linear in projections.named_linears():
            nn.init.zeros_(linear.weight)  # every language starts with the common adapter
        self.hypernetwork = Hypernetwork(trunk, projections)

    def stored_language_size(self) -> int:
        """Return the bottleneck size of the stored language adapters."""
        return self.config.stored_size

    def forward(self, ids: ConditionIds) -> Weights:
        """Generate the language adapter and look up the task adapter of every condition and site."""
        # With `language_dropout`, some labelled conditions of a batch get the language adapter of a random language.
        if self.training and self.config.language_dropout:
            device = ids.task_K.device
            is_labelled_N = torch.tensor([task not in self.raw_text for task in self.tasks], device=device)
            is_drawn_K = torch.rand(len(ids.task_K), device=device) < self.config.language_dropout
            swap_K, other_K = (
                is_drawn_K & is_labelled_N[ids.task_K],
                torch.randint_like(ids.source_K, len(self.languages)),
            )
            ids = ids._replace(
                source_K=torch.where(swap_K, other_K, ids.source_K), target_K=torch.where(swap_K, other_K, ids.target_K)
            )
        return super().forward(ids)

    def language_blocks(self, ids: ConditionIds) -> list[Block]:
        """Generate the language adapters, and look up the stored ones, which are applied after them."""
        keys_KS = self.keys(ids, self.language_sites)
        common = self.common_adapter(torch.zeros_like(keys_KS))
        generated = self.hypernetwork(self.vectors(keys_KS))
        if self.config.generated == "units":  # a factor for each column of an up projection
            scaled = {name: common[name] * (1 + factors[..., None, :]) for name, factors in generated.items()}
            tensors = common | scaled
        else:
            tensors = {name: common[name] + generated[name] for name in common}
        return [self.block(tensors, self.language_sites), *super().language_blocks(ids)]

    def vectors(self, languages_KS: Tensor) -> Tensor:
        """Concatenate the normalised embeddings of language and layer, ``[K, S, E]``."""
        layers_S = torch.arange(languages_KS.shape[1], device=languages_KS.device)
        embedded = (
            self.embeddings["language"](languages_KS),
            self.embeddings["layer"](layers_S.expand_as(languages_KS)),
        )
        return torch.cat([F.layer_norm(vectors, vectors.shape[-1:]) for vectors in embedded], dim=-1)

    def output_layer(self) -> nn.Module:
        """Return the projections that output the adapters' tensors."""
        return self.hypernetwork.projections

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages: everything that depends on languages on raw text, then task adapters on labelled data."""
        stored = [name for name in ("language_adapters", "invertible_adapters") if hasattr(self, name)]
        head = ["backbone.head"] if self.config.train_head else []
        languages = ("common_adapter", "hypernetwork", "embeddings", *stored, *head)
        return (
            Stage("languages", languages, tasks="raw-text"),
            Stage("tasks", ("task_adapters", "heads"), tasks="labelled"),
        )
