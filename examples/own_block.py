"""Add a kind of block of your own: (IA)³ (Liu et al. 2022, §3.3), with other vectors for each language.

(IA)³ multiplies the keys and the values of the self-attention by learnt vectors, and what enters the second layer of
the feed-forward sublayer: ``softmax(Q (l_k ⊙ Kᵀ) / √d) (l_v ⊙ V)`` and ``W₂ (l_ff ⊙ γ(W₁ x))``. A vector starts at 1,
and with 1 the block has no effect. So every method can store or generate it, and the backbone is unchanged before
training.

Use it on the command line: ``polyloom train recipe.yaml method.name=lang-adapters method.block=ia3 --code
examples/own_block.py``. The setting ``targets`` chooses other linear layers.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

import polyloom as pl
from polyloom.extend import (
    BackboneShape,
    Norm,
    ProjectionBlock,
    Shapes,
    TensorSpec,
    TensorSpecs,
    input_of,
    projection_of,
    register_block,
)


class Ia3(ProjectionBlock):
    """Multiply the outputs of linear layers, or the input of the one that leaves the feed-forward sublayer."""

    name = "ia3"
    default_targets = ("k", "v", "down")

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe a vector for each linear layer; its size is the layer's, whatever the adapter size."""
        tensors = {}
        for projection, (size_in, size_out) in shape.projections.items():
            length = size_in if projection == "down" else size_out
            tensors[f"{projection}_scale"] = TensorSpec((length,), start=1.0, neutral=1.0)
        return tensors

    def size_of(self, shapes: Shapes) -> int:  # noqa: ARG002
        """Return 0: there is no size to choose."""
        return 0

    def place_of(self, projection: str) -> str:
        """Return the input of ``down``, and the output of every other linear layer."""
        return input_of(projection) if projection == "down" else projection

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:  # noqa: ARG002
        """Multiply by the vector of all rows ``[E]``, or of each row ``[B, E]``."""
        scale = tensors[f"{projection_of(place)}_scale"]
        return output_BTE * (scale[:, None] if scale.dim() == 2 else scale)


register_block(Ia3())


def main() -> None:
    """Build a small model with stored vectors and one with generated ones; compare both with the backbone alone."""
    torch.manual_seed(0)
    backbone = pl.backbone_from_config(
        {"model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    )
    backbone.eval()
    inputs = {"input_ids": torch.randint(5, 100, (2, 6))}
    for config in (
        pl.LangAdaptersConfig(block="ia3"),
        pl.HyperAdaptersConfig(block="ia3", init="identity"),
        pl.HyperXConfig(block="ia3"),
    ):
        model = pl.Model(backbone, config, languages=["en", "tr"], tasks=["mlm"]).eval()
        with torch.no_grad():
            scales = model.weights(["mlm/en", "mlm/tr"]).blocks[0].tensors
            change = model(inputs, ["mlm/en", "mlm/tr"]).logits - backbone(**inputs).logits
        print(f"{config.name}: {', '.join(scales)} around 1, change {change.abs().max():.1e}")
        assert all((scale - 1).abs().max() < 0.1 for scale in scales.values())


if __name__ == "__main__":
    main()
