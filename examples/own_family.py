"""Add a model family of your own: OLMo 2. Tell Polyloom where the Transformers model keeps its layers.

No model code is copied. A family names the list of layers, the module whose output the feed-forward sublayer adds to
its residual, the linear layers that blocks can act on, and the self-attention that can have more keys and values.
"""

import torch

import polyloom as pl
from polyloom.extend import Family, register_family

register_family(
    "olmo2",
    Family(
        stacks={"decoder": "layers"},
        output="post_feedforward_layernorm",  # OLMo 2 normalises what a sublayer adds, not what it reads
        projections={name: f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")}
        | {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
        attention="self_attn",
        auto_class="AutoModelForCausalLM",
    ),
    # A model for the contract tests: pytest tests/contracts --code examples/own_family.py
    tiny={
        "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 40, "initializer_range": 0.15, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    },
)  # fmt: skip


def main() -> None:
    """Build a small OLMo 2 with Hyper-X and run a mixed batch."""
    backbone = pl.backbone_from_config(
        {
            "model_type": "olmo2", "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "intermediate_size": 64, "pad_token_id": 0, "eos_token_id": 2,
        }
    )  # fmt: skip
    model = pl.Model(backbone, pl.HyperXConfig(adapter_size=8), languages=["en", "tr"], tasks=["lm"])
    output = model({"input_ids": torch.randint(5, 100, (2, 6))}, ["lm/en", "lm/tr"])
    print("logits:", tuple(output.logits.shape))


if __name__ == "__main__":
    main()
