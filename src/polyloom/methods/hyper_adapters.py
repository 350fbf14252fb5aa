"""Hyper-Adapters (Baziotis et al. 2022): adapters of a translation model generated from (source, target, layer).

Source and target languages share one embedding matrix. All generated weights are divided by √d_h (`rescale`). `init:
hyper` scales every output projection so that the generated weights have the standard deviation of a freshly initialised
layer; the published code inverts that condition and misses by √d_h. The task of a condition has no influence.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from polyloom.conditions import ConditionIds, Inventory
from polyloom.methods.base import AdapterConfig, AdapterMethod, Stage, check, check_positive
from polyloom.nn.hypernetwork import Hypernetwork, OutputProjections, ResidualTrunk, init_xavier
from polyloom.nn.tables import GrowingEmbedding
from polyloom.weights import BackboneShape, Weights

Input = Literal["source", "target"]
PROBE = 64  # number of conditions on which `init: hyper` measures the standard deviation


@dataclass(frozen=True, kw_only=True)
class HyperAdaptersConfig(AdapterConfig):
    """Settings of Hyper-Adapters."""

    name: ClassVar[str] = "hyper-adapters"
    adapter_size: int = 128
    """Bottleneck size of the adapters, or the rank if `block` is ``lora``."""
    hidden_size: int = 612
    """Width of the hypernetwork, d_h. Default: 612 (base); the paper also has 204 (small) and 102 (tiny). It
    decides the number of trainable parameters. The wider, the lower the learning rate should be
    (``optim.groups.hypernetwork``)."""
    embedding_size: int = 50
    """Size of the embeddings of languages and layers."""
    num_blocks: int = 2
    """Number of residual blocks in the hypernetwork."""
    linear: bool = False
    """Whether the hypernetwork is linear, an ablation of the paper that needs ``num_blocks: 0``."""
    rescale: bool = True
    """Whether to divide the generated weights by √d_h. false is an ablation of the paper."""
    init: Literal["default", "hyper", "identity"] = "identity"
    """Initialisation of the output projections. ``default``: Xavier-uniform, as in the paper. ``hyper``: scaled so
    that the generated weights have the standard deviation of a fresh layer (Appendix B.1 of the paper).
    ``identity``: as ``hyper``, but the adapters have no effect before training."""
    encoder_inputs: tuple[Input, ...] = ("source", "target")
    """Languages that the encoder's adapters depend on."""
    decoder_inputs: tuple[Input, ...] = ("target",)
    """Languages that the decoder's adapters depend on."""
    dropout: float = 0.0
    """Dropout inside the hypernetwork."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "hidden_size", "embedding_size")
        check(self, self.num_blocks >= 0, f"method.num_blocks: {self.num_blocks} is negative.")
        check(self, not (self.linear and self.num_blocks), "method.linear: blocks are not linear. Set num_blocks: 0.")
        check(self, 0.0 <= self.dropout < 1.0, f"method.dropout: {self.dropout} is not in [0, 1).")


class HyperAdapters(AdapterMethod):
    """A method that generates adapters from source language, target language and layer."""

    config_type = HyperAdaptersConfig
    paper = "Baziotis et al. 2022, Hyper-Adapters"
    summary = "one hypernetwork generates the adapter of any (source, target, layer), rescaled by 1/√d_h"
    preferred = ("layer",)
    norm = "before"
    conditioned_on = ("language",)
    config: HyperAdaptersConfig

    def __init__(self, config: HyperAdaptersConfig, *, shape: BackboneShape, inventory: Inventory) -> None:
        super().__init__(config, shape=shape, inventory=inventory)
        self.decoder_depends_on = config.decoder_inputs
        size = config.embedding_size
        self.embeddings = nn.ModuleDict(
            {
                "language": GrowingEmbedding("language", len(self.languages), size=size, init=_truncated),
                "layer": GrowingEmbedding("fixed", len(shape.sites), size=size, init=_truncated),
            }
        )
        trunk = ResidualTrunk(
            3 * size,
            config.hidden_size,
            num_blocks=config.num_blocks,
            dropout=config.dropout,
            activation=nn.Identity() if config.linear else nn.ReLU(),
        )
        projections = OutputProjections(config.hidden_size, tensors=self.block_tensors(), rescale=config.rescale)
        for _, linear in projections.named_linears():
            init_xavier(linear)
        self.hypernetwork = Hypernetwork(trunk, projections)
        if config.init != "default" and not next(projections.parameters()).is_meta:  # meta tensors have no values
            self._calibrate()
        if config.init == "identity":
            projections.zero_init_up()

    def _calibrate(self) -> None:
        """Measure what is generated for some conditions, without dropout, and scale the projections (Appendix B.1)."""
        rows_K = torch.arange(min(PROBE, len(self.languages)))
        probe = ConditionIds(*[rows_K] * 5)._replace(target_K=rows_K.roll(1))
        was_training = self.training
        self.eval()
        self.hypernetwork.projections.calibrate(self.hypernetwork.trunk(self.vectors(probe)))
        self.train(was_training)

    def forward(self, ids: ConditionIds) -> Weights:
        """Generate the adapters of all conditions and sites at once."""
        return Weights((self.block(self.hypernetwork(self.vectors(ids))),))

    def vectors(self, ids: ConditionIds) -> Tensor:
        """Concatenate the embeddings of each condition and site: [source ‖ target ‖ layer], ``[K, S, E]`` (§3)."""
        sites, device = self.shape.sites, ids.source_K.device

        # By default the encoder reads both languages and the decoder the target only. Zeros replace what is not read.
        inputs = {"encoder": self.config.encoder_inputs, "decoder": self.config.decoder_inputs}
        reads_source_S = torch.tensor([float("source" in inputs[site.stack]) for site in sites], device=device)
        reads_target_S = torch.tensor([float("target" in inputs[site.stack]) for site in sites], device=device)
        source_KSE = self.embeddings["language"](ids.source_K)[:, None] * reads_source_S[:, None]
        target_KSE = self.embeddings["language"](ids.target_K)[:, None] * reads_target_S[:, None]

        layers_KS = torch.arange(len(sites), device=device).expand(len(ids.source_K), -1)
        return torch.cat([source_KSE, target_KSE, self.embeddings["layer"](layers_KS)], dim=-1)

    def output_layer(self) -> nn.Module:
        """Return the projections that output the adapters' tensors."""
        return self.hypernetwork.projections

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage that trains the hypernetwork jointly with the backbone."""
        return (Stage("joint", ("hypernetwork", "embeddings", "backbone", "heads")),)


def _truncated(_name: str, table: Tensor) -> None:
    nn.init.trunc_normal_(table, std=1.0, a=-2.0, b=2.0)
