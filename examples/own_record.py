"""Add a kind of record and a task of your own: texts with a rating from 0 to 10, which is predicted as a number.

A file has lines such as ``7 | ba do fi``. Its reader yields `RatedText`, the kind of record says how inputs are read
and predictions written, so that `Run.predict`, streams, servers and reports know both, and the task has a head of its
own with a loss and a metric.

Use it on the command line: ``polyloom train recipe.yaml --code examples/own_record.py -o runs/ratings``, with
``tasks: {rating: {}}`` and files such as ``train.stars`` in the recipe.
"""

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import polyloom as pl
from polyloom.extend import (
    Columns,
    DataError,
    EncodedExample,
    Example,
    File,
    HeadInputs,
    Metric,
    Record,
    RecordKind,
    Task,
    TaskBatch,
    TaskConfig,
    Tokenizer,
    Tokens,
    linear_classifier,
    read_lines,
    register_metric,
    register_reader,
    register_record,
    register_task,
)

GOOD, BAD = ("ba", "do", "fi"), ("gu", "ko", "lem")  # the words of texts that are rated 8, and 2


@dataclass(frozen=True, slots=True)
class RatedText(Record):
    """A text with its rating."""

    text: str
    rating: float


@dataclass(frozen=True)
class RatingPrediction:
    """A predicted rating."""

    rating: float


@register_record
class RatedKind(RecordKind):
    """Texts with ratings. An input is one text, so the defaults for reading and writing suit it."""

    name = "rated"
    record = RatedText
    prediction = RatingPrediction

    def from_texts(self, texts: Sequence[str]) -> RatedText:
        """Make a record of a text that has no rating yet."""
        return RatedText(texts[0], 0.0)

    def texts(self, record: RatedText) -> tuple[str, ...]:
        """Return the text."""
        return (record.text,)

    def gold(self, record: RatedText) -> str:
        """Return the rating, as reports show it."""
        return str(record.rating)

    def to_line(self, prediction: RatingPrediction) -> str:
        """Return the rating as `polyloom predict` writes it; the default would write all its digits."""
        return f"{prediction.rating:.1f}"


def read_ratings(file: File) -> Iterator[RatedText]:
    """Read one rating and its text per line."""
    for number, line in read_lines(file.path):
        rating, _, text = line.partition(" | ")
        try:
            yield RatedText(text, float(rating))
        except ValueError:
            raise DataError(file.path, number, "expected a rating and a text, such as 7 | ba do fi.") from None


register_reader("stars", "rated", read_ratings)

MEAN_ERROR = register_metric(
    Metric("mean_error", ("error", "texts"), lambda sums: sums[..., 0] / sums[..., 1], higher_is_better=False)
)


@register_task
class Rating(Task):
    """Predict the rating of a text from its first token."""

    name: ClassVar[str] = "rating"
    kind: ClassVar[str] = "rated"
    columns: ClassVar[Columns] = {"tokens": "ints", "rating": "int"}  # what is stored of an encoded example
    metrics: ClassVar[tuple[Metric, ...]] = (MEAN_ERROR,)
    summary: ClassVar[str] = "ratings of texts: mean absolute error"
    needs_labels: ClassVar[bool] = False

    def __init__(self, config: TaskConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.head = linear_classifier(width, 1)

    @classmethod
    def encode(
        cls, records: Sequence[Any], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode texts; what is stored are integers, so ratings are hundredths."""
        for record, tokens in zip(records, tokenizer.text([record.text for record in records]), strict=True):
            rating = {} if index is None else {"rating": round(100 * record.rating)}
            yield {"tokens": tokens, "length": len(tokens) + tokenizer.num_special(pair=False)} | rating

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per text; what is longer than `max_length` is cut."""
        room = max_length - tokenizer.num_special(pair=False)
        rows = [example.row for example in examples]
        sequences = [Tokens(tokenizer.single([int(token) for token in row["tokens"][:room]])) for row in rows]
        ratings = [int(row["rating"]) / 100 for row in rows if "rating" in row]
        targets = {"rating_B": torch.tensor(ratings)} if ratings else {}
        return TaskBatch(sequences, range(len(rows)), targets, len(rows))

    def ratings(self, states: HeadInputs) -> Tensor:
        """Compute the rating of each row; a head at zero predicts the middle."""
        rating_B: Tensor = 5 + 5 * self.head(states.hidden_BTD[:, 0])[:, 0]
        return rating_B

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the squared errors, in units of half the range."""
        return ((self.ratings(states) - rows.targets["rating_B"]) / 5).square().sum()

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:  # noqa: ARG002
        """Predict one rating per example."""
        ratings: list[float] = self.ratings(states).tolist()
        return ratings

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> RatingPrediction:  # noqa: ARG003
        """Return the prediction as the kind of record names it."""
        return RatingPrediction(decoded)

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Any:
        """Count the error of each text, and one."""
        return np.array([[abs(r.rating - rating), 1.0] for r, rating in zip(records, predictions, strict=True)])

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """Mark ratings that are off by one or more, for reports."""
        return [0] if abs(record.rating - prediction) >= 1 else []


def write_recipe(folder: Path) -> dict[str, object]:
    """Write a tokenizer and toy corpora into a folder, and return a recipe for them."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    numbers = {token: number for number, token in enumerate([*special.values(), "[MASK]", *GOOD, *BAD])}
    tokenizer = FastTokenizer(models.WordLevel(numbers, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", **special)  # noqa: S106
    wrapped.save_pretrained(folder / "tokenizer")
    for split, texts in {"train": 200, "test": 40}.items():
        draw = random.Random(split)  # noqa: S311
        with (folder / f"{split}.stars").open("w") as file:
            for _ in range(texts):
                words, rating = draw.choice(((GOOD, 8), (BAD, 2)))
                file.write(f"{rating} | {' '.join(draw.choices(words, k=draw.randint(2, 5)))}\n")
    return {
        "backbone": {
            "config": {
                "model_type": "bert", "vocab_size": len(numbers), "hidden_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2, "intermediate_size": 64,
            },
            "tokenizer": str(folder / "tokenizer"),
        },
        "method": {"name": "full"},
        "languages": ["north"],
        "tasks": {"rating": {}},
        "data": {split: {"rating/north": str(folder / f"{split}.stars")} for split in ("train", "test")},
        "optim": {"lr": 3e-3},
        "train": {"steps": 40, "rows_per_batch": 16, "dropout": False},
    }  # fmt: skip


def main() -> None:
    """Train the task on a toy language, evaluate it, and predict."""
    with tempfile.TemporaryDirectory() as name:
        run = pl.train(write_recipe(Path(name)), into=Path(name, "run"))
        print(run.evaluate().to_markdown())
        for text in ("ba do fi", "gu lem"):
            print(text, run.predict(text, "rating/north"))


if __name__ == "__main__":
    main()
