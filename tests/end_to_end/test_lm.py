"""A decoder learns languages: a LoRA for each is generated, trained on packed text and scored in bits per byte."""

import json
import random
import subprocess
import sys

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from polyloom.evaluate.matrix import Matrix
from polyloom.workflows.run import Run
from polyloom.workflows.train import train

WORDS = ("ba", "do", "fi", "gu", "ko", "lem", "mur", "sat")
END = "<|endoftext|>"


def line(language: str, seed: int) -> str:
    """Words in the order of the list, or in the opposite one, from any on; their number is odd if the seed is."""
    draw = random.Random(seed)
    start, step = draw.randrange(len(WORDS)), 1 if language == "aa" else -1
    return " ".join(WORDS[(start + step * i) % len(WORDS)] for i in range(2 * draw.randint(2, 6) + seed % 2))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A decoder of two layers with a vocabulary of bytes, and text of two languages that contradict each other."""
    folder = tmp_path_factory.mktemp("lm")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([line("aa", seed) for seed in range(200)], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder / "decoder")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer.get_vocab()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=48, max_position_embeddings=64, eos_token_id=0, bos_token_id=None,
        pad_token_id=None, initializer_range=0.3,
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
                "name": "hyperx", "block": "lora", "targets": "all-linear", "adapter_size": 16, "projection_size": 16,
                "hidden_size": 32, "embedding_size": 8,
            },
            "languages": ["aa", "bb"],
            "tasks": {"lm": {}},
            "data": {
                "train": {f"lm/{x}": f"{folder}/{x}-train.txt" for x in ("aa", "bb")},
                "test": {f"lm/{x}": f"{folder}/{x}-test.txt" for x in ("aa", "bb")},
            },
            "mixture": {"datasets_per_batch": 2},
            "optim": {"lr": 3e-3, "warmup_steps": 10},
            "train": {"steps": 250, "rows_per_batch": 8, "max_length": 48, "pack_sequences": True, "seed": 0},
        })
    )  # fmt: skip
    return path


def bits_per_byte(matrix: Matrix) -> dict[str, float]:
    scores = {str(condition): result.scores for condition, result in matrix.results.items()}
    assert all([score.metric.name for score in some] == ["bits_per_byte", "perplexity"] for some in scores.values())
    return {condition: some[0].value for condition, some in scores.items()}


def test_both_languages_are_learnt_though_they_contradict_each_other(recipe, tmp_path):
    run = train(recipe, tmp_path / "run")
    scores = bits_per_byte(run.evaluate())
    assert scores.keys() == {"lm/aa", "lm/bb"}
    # The first word is one of eight, then all is known but where it ends: about 5 bits for a line of 28 bytes, 0.2
    # for each. Not to know the language costs a bit more for the second word, and words alone 0.9 for each byte.
    assert max(scores.values()) < 0.45, scores
    other = Run.load(tmp_path / "run").evaluate({"lm/aa": f"{recipe.parent}/bb-test.txt"})
    assert bits_per_byte(other)["lm/aa"] > 5 * scores["lm/bb"], "the language matters"
    aa, bb = run.generate(["ba do fi", "lem ko gu"], ["lm/aa", "lm/bb"], max_new_tokens=6)
    assert (aa.split()[0], bb.split()[0]) == ("gu", "fi")
    command = [sys.executable, "-m", "polyloom", "generate", str(tmp_path / "run"), "lm/aa", "--max-new-tokens", "6"]
    piped = subprocess.run([*command, "--json"], input="ba do fi\n", capture_output=True, text=True, check=True)
    assert json.loads(piped.stdout) == {"prompt": "ba do fi", "text": aa}
