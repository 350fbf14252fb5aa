"""A decoder of two layers with a vocabulary of bytes, and text of two languages that contradict each other."""

import json
import random
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = ("ba", "do", "fi", "gu", "ko", "lem", "mur", "sat")
END = "<|endoftext|>"


def line(language: str, seed: int) -> str:
    """Words in the order of the list, or in the opposite one, from any on; their number is odd if the seed is."""
    draw = random.Random(seed)
    start, step = draw.randrange(len(WORDS)), 1 if language == "aa" else -1
    return " ".join(WORDS[(start + step * i) % len(WORDS)] for i in range(2 * draw.randint(2, 6) + seed % 2))


def decoder_recipe(folder: Path, *, steps: int = 250) -> Path:
    """Write the decoder, the text and a recipe that trains a generated LoRA for each language."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([line("aa", seed) for seed in range(200)], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder / "decoder")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer.get_vocab()), hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=48, max_position_embeddings=64, eos_token_id=0, bos_token_id=None,
        pad_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "decoder")
    for language in ("aa", "bb"):
        for split, seeds in {"train": range(0, 600, 2), "test": range(1, 81, 2)}.items():
            lines = "".join(line(language, seed) + "\n" for seed in seeds)
            (folder / f"{language}-{split}.txt").write_text(lines)
    path = folder / "recipe.yaml"
    path.write_text(
        json.dumps({
            "backbone": {"name": str(folder / "decoder")},
            "method": {
                "name": "hyper-stack", "block": "lora", "targets": "all-linear", "adapter_size": 16,
                "projection_size": 16, "hidden_size": 32, "embedding_size": 8,
            },
            "languages": ["aa", "bb"],
            "tasks": {"lm": {}},
            "data": {
                "train": {f"lm/{x}": f"{folder}/{x}-train.txt" for x in ("aa", "bb")},
                "test": {f"lm/{x}": f"{folder}/{x}-test.txt" for x in ("aa", "bb")},
            },
            "mixture": {"datasets_per_batch": 2},
            "optim": {"lr": 3e-3, "warmup_steps": 10},
            "train": {"steps": steps, "rows_per_batch": 8, "max_length": 48, "pack_sequences": True, "seed": 0},
        })
    )  # fmt: skip
    return path
