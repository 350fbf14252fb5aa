"""Hyper-X (Üstün et al. 2022): one hypernetwork generates the adapter of any (task, language, layer).

``[language ‖ task ‖ layer] → Linear → relu → Linear → one linear head per tensor``. All linear layers start from
N(0, 0.02), which is what the published model was effectively trained from. The paper has no layer norm inside the
adapter; the published run generates one of the adapter's output (`norm: after`). As there, the transform, norm and bias
of the backbone's language-modelling head are trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from polyloom.conditions import ConditionIds, Inventory
from polyloom.methods.base import AdapterConfig, AdapterMethod, Stage, check, check_positive
from polyloom.nn.blocks import Norm
from polyloom.nn.hypernetwork import Hypernetwork, OutputProjections
from polyloom.nn.tables import FixedEmbedding, GrowingEmbedding, normal_init
from polyloom.weights import BackboneShape, Weights

INIT_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class HyperXConfig(AdapterConfig):
    """Settings of Hyper-X."""

    name: ClassVar[str] = "hyperx"
    adapter_size: int = 256
    """Bottleneck size of the adapters, or the rank if `block` is ``lora``."""
    projection_size: int = 192
    """Input size of the output projections, d_p. Default: 192 (base); the paper also has 32 (small). It decides the
    number of trainable parameters."""
    hidden_size: int = 192
    """Size of the projector's hidden layer."""
    embedding_size: int = 64
    """Size of the embeddings of languages, tasks and layers."""
    norm: Norm = "none"
    """Layer norm inside the adapter. ``none``: as in the paper. ``after``: generated, of the adapter's output, with
    the generated gain, as in the published code; it bounds what an adapter adds. ``before``: generated, before the
    down projection, with gain one plus what is generated."""
    language_layers: int | None = None
    """Number of layers, from the first, whose adapters depend on the language. Default: all layers. Not in the
    paper: the language-specific part of the upper layers is trained on raw text to predict tokens, and can harm
    other tasks. Lower it if zero-shot scores are poor."""
    typology: bool = False
    """Whether the hypernetwork also reads the typological features of a language, beside its trained embedding. Not
    in the paper."""
    train_head: bool = True
    """Whether to train the backbone's language-modelling head. With false, the adapters alone must make the
    backbone predict tokens, and what they learn for that harms other tasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "projection_size", "hidden_size", "embedding_size")
        depth = self.language_layers
        check(self, depth is None or depth >= 0, f"method.language_layers: {depth} is negative.")


class HyperX(AdapterMethod):
    """A method that generates adapters from task, language and layer."""

    config_type = HyperXConfig
    paper = "Üstün et al. 2022, Hyper-X"
    summary = "one hypernetwork generates the adapter of any (task, language, layer)"
    preferred = ("output",)
    decoder_depends_on = ("task", "target")
    config: HyperXConfig

    def __init__(self, config: HyperXConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        size, init = config.embedding_size, normal_init(1.0)
        self.embeddings = nn.ModuleDict(
            {
                "language": GrowingEmbedding("language", len(self.languages), size=size, init=init),
                "task": GrowingEmbedding("task", len(self.tasks), size=size, init=init),
                "layer": GrowingEmbedding("fixed", len(shape.sites), size=size, init=init),
            }
        )
        if config.typology:
            self.typology_size = size
            self.features = FixedEmbedding("language", len(self.languages), size=size)
        num_vectors = 4 if config.typology else 3
        trunk = nn.Sequential(
            nn.Linear(num_vectors * size, config.hidden_size),
            nn.ReLU(),
            nn.Linear(config.hidden_size, config.projection_size),
        )
        tensors = self.block_tensors(norm=config.norm)
        self.hypernetwork = Hypernetwork(
            trunk, OutputProjections(config.projection_size, tensors=tensors, rescale=False)
        )
        for module in self.hypernetwork.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INIT_STD)
                nn.init.zeros_(module.bias)

    def forward(self, ids: ConditionIds) -> Weights:
        """Generate the adapters of all conditions and sites at once."""
        return Weights((self.block(self.hypernetwork(self.vectors(ids))),))

    def vectors(self, ids: ConditionIds) -> Tensor:
        """Concatenate the embeddings of each condition and site: [language ‖ task ‖ layer], ``[K, S, E]``."""
        languages_KS = self.stack_languages(ids, self.shape.sites)
        language_KSE = self.embeddings["language"](languages_KS)
        features_KSE = self.features(languages_KS) if self.config.typology else None

        # Layers above `language_layers` read zeros in the place of the language.
        if (depth := self.config.language_layers) is not None:
            uses_language_S = torch.tensor([site.layer < depth for site in self.shape.sites], device=ids.task_K.device)
            language_KSE = language_KSE * uses_language_S[:, None]
            features_KSE = None if features_KSE is None else features_KSE * uses_language_S[:, None]

        task_KSE = self.embeddings["task"](ids.task_K[:, None].expand_as(languages_KS))
        layers_S = torch.arange(len(self.shape.sites), device=languages_KS.device)
        layer_KSE = self.embeddings["layer"](layers_S.expand_as(languages_KS))
        vectors = [language_KSE, task_KSE, layer_KSE] + ([] if features_KSE is None else [features_KSE])
        return torch.cat(vectors, dim=-1)

    @torch.no_grad()
    def set_features(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Set the typological vectors of languages."""
        for language, vector in vectors.items():
            self.features.get_parameter("weight")[self.languages.row(language)] = torch.tensor(vector)

    def output_layer(self) -> nn.Module:
        """Return the projections that output the adapters' tensors."""
        return self.hypernetwork.projections

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage over the data of all conditions, including masked language modelling."""
        head = ("backbone.head",) if self.config.train_head else ()
        return (Stage("joint", ("hypernetwork", "embeddings", "backbone.norms", *head, "heads")),)
