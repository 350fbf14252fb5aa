"""Add a model family of your own: tell Polyloom where a Transformers model keeps its layers.

No model code is copied. A family names the list of layers, the module whose output the feed-forward sublayer adds to
its residual, and the attention projections that LoRA may adapt.
"""

import torch

import polyloom as pl

pl.register_family(
    "electra",
    pl.Family(
        stacks={"encoder": "encoder.layer"},
        output="output.dropout",
        norm="output.LayerNorm",
        projections={"q": "attention.self.query", "v": "attention.self.value"},
        vocabulary=("generator_predictions", "generator_lm_head"),
    ),
)


def main() -> None:
    """Build a small ELECTRA with Hyper-X and run a mixed batch."""
    backbone = pl.backbone_from_config(
        {
            "model_type": "electra", "vocab_size": 100, "embedding_size": 32, "hidden_size": 32,
            "num_hidden_layers": 2, "num_attention_heads": 2,
        }
    )  # fmt: skip
    model = pl.Model(backbone, pl.HyperXConfig(adapter_size=8), languages=["en", "tr"], tasks=["mlm"])
    output = model({"input_ids": torch.randint(5, 100, (2, 6))}, ["mlm/en", "mlm/tr"])
    print("logits:", tuple(output.logits.shape))


if __name__ == "__main__":
    main()
