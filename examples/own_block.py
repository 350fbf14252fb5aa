"""Add a kind of block of your own: a scale for every hidden unit, as in (IA)³. It multiplies instead of adding.

The kind describes its tensors: a scale starts at 1, and with 1 the block has no effect. So every method can store or
generate it, and the backbone is unchanged before training.

Use it on the command line: ``polyloom train recipe.yaml method.block=scale --code examples/own_block.py``
"""

from collections.abc import Mapping

import torch
from torch import Tensor

import polyloom as pl
from polyloom.nn.blocks import BlockKind, Norm, TensorSpec, TensorSpecs
from polyloom.weights import BackboneShape, Shapes


class Scale(BlockKind):
    """Multiply hidden states by a vector."""

    name = "scale"

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe the vector; it has the width of the backbone, whatever the adapter size."""
        return {"scale": TensorSpec((shape.width,), start=1.0, neutral=1.0)}

    def size_of(self, found: Shapes) -> int:  # noqa: ARG002
        """Return 0: there is no size to choose."""
        return 0

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:  # noqa: ARG002
        """Multiply by the vector of all rows ``[E]``, or of each row ``[B, E]``."""
        scale = tensors["scale"]
        return output_BTE * (scale[:, None] if scale.dim() == 2 else scale)


pl.register_block(Scale())


def main() -> None:
    """Build a small model with stored scales and one with generated scales; compare both with the backbone alone."""
    torch.manual_seed(0)
    backbone = pl.backbone_from_config(
        {"model_type": "bert", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    )
    backbone.eval()
    inputs = {"input_ids": torch.randint(5, 100, (2, 6))}
    for config in (
        pl.LangAdaptersConfig(block="scale"),
        pl.HyperAdaptersConfig(block="scale", init="identity"),
        pl.HyperXConfig(block="scale"),
    ):
        model = pl.Model(backbone, config, languages=["en", "tr"], tasks=["mlm"]).eval()
        with torch.no_grad():
            scale = model.weights(["mlm/en", "mlm/tr"]).blocks[0].tensors["scale"]
            change = model(inputs, ["mlm/en", "mlm/tr"]).logits - backbone(**inputs).logits
        print(f"{config.name}: scales from {scale.min():.4f} to {scale.max():.4f}, change {change.abs().max():.1e}")
        assert (scale - 1).abs().max() < 0.1


if __name__ == "__main__":
    main()
