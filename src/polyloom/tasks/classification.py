"""Text classification: one label per text."""

from abc import ABC
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyloom.data.records import Kind, LabelledText, LabelPrediction, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.metrics.score import ACCURACY, Array, Metric
from polyloom.metrics.tags import majority_share, tag_statistics
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    Head,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    linear_classifier,
)


class Classification(Task, ABC):
    """Base class of tasks with one label per example, by a linear or generated classifier on the first token."""

    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)
    export_head: ClassVar[Head | None] = "sequence-classification"

    def __init__(self, config: TaskConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.classifier = linear_classifier(width, len(self.labels))

    @staticmethod
    def batch(sequences: Sequence[Tokens], rows: Sequence[EncodedExample]) -> TaskBatch:
        """Put the rows of a batch together with their labels."""
        targets = {}
        if "labels" in rows[0]:
            targets["labels_B"] = torch.as_tensor(np.array([row["labels"][0] for row in rows], dtype=np.int64))
        return TaskBatch(sequences, range(len(rows)), targets, len(rows))

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy over examples."""
        labels_B = rows.targets["labels_B"]
        logits_BE = self.logits(states).float()
        return F.cross_entropy(
            logits_BE, labels_B, ignore_index=-1, reduction="sum", label_smoothing=self.label_smoothing
        )

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:  # noqa: ARG002
        """Predict one label per example."""
        return [self.labels[i] for i in self.logits(states).argmax(-1).tolist()]

    def confidences(self, states: HeadInputs, rows: TaskBatch, predictions: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Return the probability of each label."""
        best: list[float] = self.logits(states).float().softmax(-1).amax(-1).tolist()
        return best

    def logits(self, states: HeadInputs) -> Tensor:
        """Compute the logits of each sequence from its first token."""
        first_B1D = states.hidden_BTD[:, :1]
        if states.classify is not None:
            return states.classify(first_B1D)[:, 0, : len(self.labels)]
        logits: Tensor = self.classifier(first_B1D[:, 0])
        return logits

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Count right labels and all labels."""
        return tag_statistics([[record.label] for record in records], [[label] for label in predictions])

    @classmethod
    def majority(cls, records: Iterable[Record]) -> float:
        """Score the most frequent label."""
        return majority_share(record.label for record in records if hasattr(record, "label"))

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """Compare the label."""
        return [] if prediction == record.label else [0]

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> LabelPrediction:  # noqa: ARG003
        """Return the label with its probability."""
        return LabelPrediction(decoded, score)


class TextClassification(Classification):
    """Text classification: one label per text."""

    name = "cls"
    kind: ClassVar[Kind] = "labelled"
    columns: ClassVar[Columns] = {"tokens": "ints", "labels": "ints"}
    summary = "text classification: accuracy"

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode texts, with the label as a list of one number."""
        texts = [record for record in records if isinstance(record, LabelledText)]
        special = tokenizer.num_special(pair=False)
        for record, tokens in zip(texts, tokenizer.text([text.text for text in texts]), strict=True):
            labels = {} if index is None else {"labels": [index.setdefault(record.label, len(index))]}
            yield {"tokens": tokens, "length": len(tokens) + special} | labels

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per text; what is longer than `max_length` is cut."""
        rows = [example.row for example in examples]
        room = max_length - tokenizer.num_special(pair=False)
        sequences = [Tokens(tokenizer.single([int(token) for token in row["tokens"][:room]])) for row in rows]
        return self.batch(sequences, rows)
