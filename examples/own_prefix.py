"""Add a prefix per language: every token also attends to some trained keys and values, in every layer.

This is prefix tuning (Li & Liang 2021) and P-tuning v2 (Liu et al. 2022). With ``lang-adapters`` each language has a
prefix of its own; hypernetworks such as ``hyper-adapters`` generate it from the language.

Use it on the command line: ``polyloom train recipe.yaml method.name=lang-adapters method.block=prefix
method.adapter_size=20 --code examples/own_prefix.py``. The adapter size is the length of the prefix.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

import polyloom as pl
from polyloom.extend import AttentionBlock, BackboneShape, Norm, Shapes, TensorSpec, TensorSpecs, register_block


class Prefix(AttentionBlock):
    """Add keys and values to the self-attention of every layer."""

    name = "prefix"

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:  # noqa: ARG002
        """Describe the keys and the values. No value leaves them without effect: they always take some attention."""
        return {name: TensorSpec((size, shape.kv_width), start=None) for name in ("key", "value")}

    def size_of(self, shapes: Shapes) -> int:
        """Return the length of the prefix."""
        return shapes.get("key", (0,))[0]

    def keys_values(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the tensors as they are. A kind could also compute them, as the paper does by an MLP."""
        return tensors["key"], tensors["value"]


register_block(Prefix())


def main() -> None:
    """Generate text with a small decoder whose rows have the prefixes of different languages."""
    torch.manual_seed(0)
    backbone = pl.backbone_from_config(
        {
            "model_type": "llama", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "pad_token_id": 0,
        }
    )  # fmt: skip
    config = pl.LangAdaptersConfig(block="prefix", adapter_size=4)
    model = pl.Model(backbone, config, languages=["en", "tr"], tasks=["lm"]).eval()
    for parameter in model.method.parameters():
        torch.nn.init.normal_(parameter)
    inputs = {"input_ids": torch.tensor([[5, 6, 7], [5, 6, 7]]), "attention_mask": torch.ones(2, 3, dtype=torch.long)}
    rows = ["lm/en", "lm/tr"]
    for row, ids in zip(rows, model.generate(inputs, rows, max_new_tokens=6).tolist(), strict=True):
        print(row, ids)


if __name__ == "__main__":
    main()
