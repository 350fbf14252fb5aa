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
from polyloom.nn.hypernetwork import OutputProjections, ResidualTrunk, init_xavier
from polyloom.nn.tables import GrowingEmbedding
from polyloom.weights import BackboneShape, Weights

Input = Literal["source", "target"]
PROBE = 64  # number of conditions on which `init: hyper` measures the standard deviation


@dataclass(frozen=True, kw_only=True)
class HyperAdaptersConfig(AdapterConfig):
    """Settings of Hyper-Adapters.

    Attributes:
        adapter_size: Bottleneck size of the adapters, or the rank if `block` is ``lora``. Default: 128.
        hidden_size: Width of the hypernetwork, d_h. Default: 612 (base); the paper also has 204 (small) and 102 (tiny).
            It decides the number of trainable parameters. The wider, the lower the learning rate should be
            (``optim.groups.hypernetwork``).
        embedding_size: Size of the embeddings of languages and layers. Default: 50.
        num_blocks: Number of residual blocks in the hypernetwork. Default: 2.
        linear: Whether the hypernetwork is linear, an ablation of the paper that needs ``num_blocks: 0``. Default:
            false.
        rescale: Whether to divide the generated weights by √d_h. Default: true; false is an ablation of the paper.
        init: Initialisation of the output projections. ``default``: Xavier-uniform, as in the paper. ``hyper``: scaled
            so that the generated weights have the standard deviation of a fresh layer (Appendix B.1 of the paper).
            ``identity``: as ``hyper``, but the adapters have no effect before training. Default: ``identity``.
        encoder_inputs: Languages that the encoder's adapters depend on. Default: ``[source, target]``.
        decoder_inputs: Languages that the decoder's adapters depend on. Default: ``[target]``.
        dropout: Dropout inside the hypernetwork. Default: 0.
    """

    name: ClassVar[str] = "hyper-adapters"
    adapter_size: int = 128
    hidden_size: int = 612
    embedding_size: int = 50
    num_blocks: int = 2
    linear: bool = False
    rescale: bool = True
    init: Literal["default", "hyper", "identity"] = "identity"
    encoder_inputs: tuple[Input, ...] = ("source", "target")
    decoder_inputs: tuple[Input, ...] = ("target",)
    dropout: float = 0.0

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
        self.decoder_inputs = config.decoder_inputs
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
        heads = OutputProjections(config.hidden_size, tensors=self.block_tensors(), rescale=config.rescale)
        self.hypernetwork = nn.ModuleDict({"trunk": trunk, "heads": heads})
        for linear in heads.linears.values():
            init_xavier(linear)
        # On the device meta there are no values to measure.
        if config.init != "default" and not next(heads.parameters()).is_meta:
            self._calibrate(heads)
        if config.init == "identity":
            heads.zero_init_up()

    def _calibrate(self, heads: OutputProjections) -> None:
        rows_K = torch.arange(min(PROBE, len(self.languages)))
        probe = ConditionIds(*[rows_K] * 5)._replace(target_K=rows_K.roll(1))
        was_training = self.training
        heads.calibrate(self.eval().project(probe))
        self.train(was_training)

    def forward(self, ids: ConditionIds) -> Weights:
        """Generate the adapters of all conditions and sites at once."""
        return Weights((self.block(self.hypernetwork["heads"](self.project(ids))),))

    def project(self, ids: ConditionIds) -> Tensor:
        """Compute the input of the output projections, ``[K, S, d_h]``."""
        inputs = {"encoder": self.config.encoder_inputs, "decoder": self.config.decoder_inputs}
        sites = self.shape.sites
        shape_KS = (len(ids.source_K), len(sites))
        device = ids.source_K.device
        vectors = []
        for name, rows_K in (("source", ids.source_K), ("target", ids.target_K)):
            used_S = torch.tensor([float(name in inputs[site.stack]) for site in sites], device=device)
            vectors.append(self.embeddings["language"](rows_K)[:, None] * used_S[:, None])
        layers_S = torch.arange(len(sites), device=device)
        vectors.append(self.embeddings["layer"](layers_S.expand(shape_KS)))
        hidden_KSE: Tensor = self.hypernetwork["trunk"](torch.cat(vectors, dim=-1))
        return hidden_KSE

    def output_layer(self) -> nn.Module:
        """Return the projections that output the adapters' tensors."""
        return self.hypernetwork["heads"]

    def stages(self) -> tuple[Stage, ...]:
        """Return one stage that trains the hypernetwork jointly with the backbone."""
        return (Stage("joint", ("hypernetwork", "embeddings", "backbone", "heads")),)


def _truncated(_name: str, table: Tensor) -> None:
    nn.init.trunc_normal_(table, std=1.0, a=-2.0, b=2.0)
