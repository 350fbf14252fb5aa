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
from polyloom.nn.blocks import BLOCKS, TensorSpec, TensorSpecs
from polyloom.nn.hypernetwork import OutputProjections
from polyloom.nn.tables import GrowingEmbedding, normal_init
from polyloom.weights import BackboneShape, Block, Weights


@dataclass(frozen=True, kw_only=True)
class HyperStackConfig(StackedConfig):
    """Settings of Hyper-Stack.

    Attributes:
        adapter_size: Bottleneck size of the generated language adapters. Default: 48.
        projection_size: Input size of the output projections. Default: 16. It decides the number of parameters.
        hidden_size: Size of the projector's hidden layer. Default: 64.
        embedding_size: Size of the embeddings of languages and layers. Default: 64.
        generated: What is generated for a language. ``adapters``: a difference of every tensor to the common adapter.
            ``units``: one factor for each unit of the common adapter (compare Zhyper), which takes a hundredth of the
            hypernetwork's parameters. Default: ``adapters``.
        stored_size: Bottleneck size of an adapter that each language stores beside the generated one. Default: 0, for
            none. A few units give a language room for what the hypernetwork cannot express.
        language_dropout: Share of training batches in which labelled data has the language adapter of a random
            language, so that task adapters fit all languages. Default: 0.
        invertible: Whether to store an invertible adapter for each language. Default: false.
    """

    name: ClassVar[str] = "hyper-stack"
    adapter_size: int = 48
    projection_size: int = 16
    hidden_size: int = 64
    embedding_size: int = 64
    generated: Literal["adapters", "units"] = "adapters"
    stored_size: int = 0
    language_dropout: float = 0.0
    invertible: bool = False

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
    decoder_inputs = ("task", "target")
    config: HyperStackConfig

    def __init__(self, config: HyperStackConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        size, init, tensors = config.embedding_size, normal_init(1.0), self.block_tensors()
        sites = len(self.language_sites)
        self.common_adapter = stacked_bank("fixed", 1, sites, tensors)
        self.embeddings = nn.ModuleDict(
            {
                "language": GrowingEmbedding("language", len(self.languages), size=size, init=init),
                "layer": GrowingEmbedding("fixed", sites, size=size, init=init),
            }
        )
        projector = nn.Sequential(
            nn.Linear(2 * size, config.hidden_size),
            nn.ReLU(),
            nn.Linear(config.hidden_size, config.projection_size),
        )
        if config.generated == "units":
            tensors = {
                name: TensorSpec(tensors[name].shape[-1:], start=0.0) for name in BLOCKS[config.block].ups(tensors)
            }
        heads = OutputProjections(config.projection_size, tensors=_differences(tensors), rescale=False, bias=False)
        for linear in heads.linears.values():
            assert isinstance(linear, nn.Linear)
            nn.init.zeros_(linear.weight)
        self.hypernetwork = nn.ModuleDict({"projector": projector, "heads": heads})

    def stored_language_size(self) -> int:
        """Return the bottleneck size of the stored language adapters."""
        return self.config.stored_size

    def forward(self, ids: ConditionIds) -> Weights:
        """Generate the language adapter and look up the task adapter of every condition and site."""
        if self.training and self.config.language_dropout:
            ids = self._with_random_languages(ids)
        return super().forward(ids)

    def _with_random_languages(self, ids: ConditionIds) -> ConditionIds:
        """Replace the language of some conditions with labels, drawn for each batch, by a random one."""
        device = ids.task_K.device
        labelled_N = torch.tensor([task not in self.raw_text for task in self.tasks], device=device)
        drawn_K = torch.rand(len(ids.task_K), device=device) < self.config.language_dropout
        swapped_K, other_K = drawn_K & labelled_N[ids.task_K], torch.randint_like(ids.source_K, len(self.languages))
        source_K, target_K = (torch.where(swapped_K, other_K, own_K) for own_K in (ids.source_K, ids.target_K))
        return ids._replace(source_K=source_K, target_K=target_K)

    def language_blocks(self, ids: ConditionIds) -> list[Block]:
        """Generate the language adapters, and look up the stored ones, which are applied after them."""
        keys_KS = self.keys(ids, self.language_sites)
        generated = self.hypernetwork["heads"](self.project(keys_KS))
        common = self.common_adapter(torch.zeros_like(keys_KS))
        if self.config.generated == "units":
            made = common | {name: common[name] * (1 + factors[..., None, :]) for name, factors in generated.items()}
        else:
            made = {name: common[name] + generated[name] for name in common}
        return [self.block(made, self.language_sites), *super().language_blocks(ids)]

    def project(self, keys_KS: Tensor) -> Tensor:
        """Compute the input of the output projections, ``[K, S, d_p]``."""
        layers_S = torch.arange(keys_KS.shape[1], device=keys_KS.device)
        inputs = (self.embeddings["language"](keys_KS), self.embeddings["layer"](layers_S.expand_as(keys_KS)))
        hidden_KSE = self.hypernetwork["projector"](torch.cat([_normed(vectors) for vectors in inputs], dim=-1))
        return _normed(hidden_KSE)

    def output_layer(self) -> nn.Module:
        """Return the projections that output the adapters' tensors."""
        return self.hypernetwork["heads"]

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages: everything that depends on languages on raw text, then task adapters on labelled data."""
        stored = [name for name in ("language_adapters", "invertible_adapters") if hasattr(self, name)]
        head = ["backbone.head"] if self.config.train_head else []
        languages = ("common_adapter", "hypernetwork", "embeddings", *stored, *head)
        return (
            Stage("languages", languages, tasks="raw-text"),
            Stage("tasks", ("task_adapters", "heads"), tasks="labelled"),
        )


def _differences(tensors: TensorSpecs) -> TensorSpecs:
    """Describe differences of tensors, which are around zero."""
    return {name: spec._replace(start=0.0) for name, spec in tensors.items()}


def _normed(vectors: Tensor) -> Tensor:
    return F.layer_norm(vectors, vectors.shape[-1:])
