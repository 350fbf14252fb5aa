"""Decoders of 135 M to 70 B parameters by their published shapes, and a recipe that trains LoRA on them."""

from typing import Any

_LLAMA_3 = {
    "model_type": "llama", "vocab_size": 128_256, "num_key_value_heads": 8, "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M": {
        "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-0.5B": {
        "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32_768, "tie_word_embeddings": True,
    },
    "meta-llama/Llama-3.1-8B": _LLAMA_3
    | {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "meta-llama/Llama-3.1-70B": _LLAMA_3
    | {"hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80, "num_attention_heads": 64},
}  # fmt: skip
PARAMETERS = {  # as their publishers count them
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
}


def settings(name: str) -> dict[str, Any]:
    """Return the recipe of docs/language-models.md for one of the decoders: generated LoRA on shards in bf16."""
    return {
        "backbone": {"name": name, "config": DECODERS[name], "dtype": "bf16"},
        "method": {"name": "hyper-stack", "block": "lora", "targets": "all-linear", "adapter_size": 16},
        "languages": ["sw", "ha", "yo"],
        "tasks": {"lm": {}},
        "train": {
            "steps": 2000, "rows_per_batch": 64, "grad_accum_steps": 32, "max_length": 2048, "pack_sequences": True,
            "strategy": "fsdp", "gradient_checkpointing": True,
        },
    }  # fmt: skip
