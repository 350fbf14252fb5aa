"""Add a task of your own: is a text a question? One label per text, so most of it is that of text classification.

Its class has a name, its metrics and its formats; see `polyloom.extend.Task` for all that a task can define. Its
records are those of tables with the columns text and label.

Use it on the command line: ``polyloom train recipe.yaml --code examples/own_task.py -o runs/questions``, with
``tasks: {question: {}}`` in the recipe. `polyloom predict` and `polyloom evaluate` take the same option.
"""

import random
import tempfile
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import polyloom as pl
from polyloom.extend import TextClassification, register_task

WORDS = ("ba", "do", "fi", "gu", "ko", "lem")
PARTICLES = {"north": "ka", "south": "li"}  # the word that makes a text a question


@register_task
class Question(TextClassification):
    """Tell questions from statements."""

    name: ClassVar[str] = "question"
    summary: ClassVar[str] = "questions and statements: accuracy"


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer that knows these words."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokens = [*special.values(), "[MASK]", *WORDS, *PARTICLES.values()]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **special)  # noqa: S106
    wrapped.save_pretrained(folder)


def write_corpus(path: Path, language: str, *, seed: int, sentences: int) -> None:
    """Write one text and its label per line."""
    draw = random.Random(seed)  # noqa: S311
    lines = ["text\tlabel"]
    for _ in range(sentences):
        words, is_question = draw.choices(WORDS, k=draw.randint(2, 4)), draw.random() < 0.5
        text = " ".join([*words, PARTICLES[language]] if is_question else words)
        lines.append(f"{text}\t{'question' if is_question else 'statement'}")
    path.write_text("\n".join(lines) + "\n")


def write_recipe(folder: Path) -> dict[str, object]:
    """Write the tokenizer and the corpora into a folder, and return a recipe for them."""
    write_tokenizer(folder / "tokenizer")
    data: dict[str, dict[str, str]] = {"train": {}, "test": {}}
    for language in PARTICLES:
        for seed, (split, sentences) in enumerate({"train": 100, "test": 30}.items()):
            path = folder / f"{language}-{split}.tsv"
            write_corpus(path, language, seed=seed, sentences=sentences)
            data[split][f"question/{language}"] = str(path)
    return {
        "backbone": {
            "config": {
                "model_type": "bert", "vocab_size": 13, "hidden_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2, "intermediate_size": 64,
            },
            "tokenizer": str(folder / "tokenizer"),
        },
        "method": {"name": "full"},
        "languages": list(PARTICLES),
        "tasks": {"question": {}},
        "data": data,
        "optim": {"lr": 3e-3},
        "train": {"steps": 40, "rows_per_batch": 16, "dropout": False},
    }  # fmt: skip


def main() -> None:
    """Train the task on two toy languages, evaluate it, and predict."""
    with tempfile.TemporaryDirectory() as name:
        run = pl.train(write_recipe(Path(name)), into=Path(name, "run"))
        print(run.evaluate().to_markdown())
        for prediction in run.predict(["ba do ka", "ba do"], "question/north"):
            print(prediction)


if __name__ == "__main__":
    main()
