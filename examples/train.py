"""Train and evaluate a model and predict with it: two toy languages in which the same words have different tags.

The corpora are written here, so that it runs offline in seconds. With real corpora only the names in the recipe differ.
"""

import random
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import polyloom as pl

WORDS = ("ba", "do", "fi", "gu", "ko", "lem")
TAGS = {"north": ("NOUN", "VERB", "ADJ"), "south": ("VERB", "ADJ", "NOUN")}


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer that knows these words."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    numbers = {token: number for number, token in enumerate([*special.values(), "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **special)  # noqa: S106
    wrapped.save_pretrained(folder)


def write_corpus(path: Path, language: str, *, seed: int, sentences: int) -> None:
    """Write words and tags, one pair per line, with a blank line after each sentence."""
    draw = random.Random(seed)  # noqa: S311
    with path.open("w") as file:
        for _ in range(sentences):
            for word in draw.choices(WORDS, k=draw.randint(3, 6)):
                file.write(f"{word}\t{TAGS[language][WORDS.index(word) % 3]}\n")
            file.write("\n")


def main() -> None:
    """Train, evaluate, predict."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(folder / "tokenizer")
        for language in TAGS:
            write_corpus(folder / f"{language}-train.tsv", language, seed=1, sentences=200)
            write_corpus(folder / f"{language}-test.tsv", language, seed=2, sentences=50)
        recipe = {
            "backbone": {
                "config": {
                    "model_type": "bert", "vocab_size": 11, "hidden_size": 32, "num_hidden_layers": 2,
                    "num_attention_heads": 2, "intermediate_size": 64,
                },
                "tokenizer": str(folder / "tokenizer"),
            },
            "method": {"name": "hyperx", "adapter_size": 8, "projection_size": 16},
            "languages": list(TAGS),
            "tasks": {"pos": {}},
            "data": {
                "train": {f"pos/{language}": str(folder / f"{language}-train.tsv") for language in TAGS},
                "test": {f"pos/{language}": str(folder / f"{language}-test.tsv") for language in TAGS},
            },
            "mixture": {"datasets_per_batch": 2},  # both languages in every batch
            "optim": {"lr": 1e-2},
            "train": {"steps": 80, "rows_per_batch": 32, "dropout": False},
        }  # fmt: skip
        run = pl.train(recipe, into=folder / "run")
        print(run.evaluate().to_markdown())
        for prediction in run.predict(["ba do fi", "ba do fi"], ["pos/north", "pos/south"]):
            print(prediction)


if __name__ == "__main__":
    main()
