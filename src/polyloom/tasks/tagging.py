"""Tagging words: parts of speech and named entities."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from polyloom.data.records import Kind, Record, Tagged
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.metrics.score import ACCURACY, F1, Array, Metric
from polyloom.metrics.spans import repair_bio, span_statistics
from polyloom.metrics.tags import tag_statistics
from polyloom.tasks.base import Columns, EncodedExample, Example, HeadInputs, Task, TaskBatch, linear_classifier
from polyloom.tasks.words import collate_words, encode_words, gather_words, pad_targets


class Tagging(Task):
    """One label per word: a linear classifier on the word's vector, or the one that the method made."""

    kind: ClassVar[Kind] = "tags"
    columns: ClassVar[Columns] = {"tokens": "ints", "counts": "ints", "reads": "ints", "labels": "ints"}

    def __init__(self, labels: Sequence[str], *, width: int) -> None:
        super().__init__(labels, width=width)
        self.classifier = linear_classifier(width, len(labels))

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Words as pieces, tags as numbers."""
        tagged = [record for record in records if isinstance(record, Tagged)]
        for record, row in zip(tagged, encode_words([r.words for r in tagged], tokenizer), strict=True):
            labels = {} if index is None else {"labels": [index.setdefault(tag, len(index)) for tag in record.tags]}
            yield row | labels

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Windows of sentences."""
        rows = [example.row for example in examples]
        laid = collate_words(rows, tokenizer=tokenizer, max_length=max_length)
        if "labels" not in rows[0]:
            return laid
        labels_SW = pad_targets(rows, "labels", laid.targets["mask_SW"])
        return TaskBatch(laid.sequences, laid.examples, {**laid.targets, "labels_SW": labels_SW}, laid.count)

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Cross entropy over words."""
        labels_SW = rows.targets["labels_SW"]
        logits_SWE = self._logits(states, rows)
        return F.cross_entropy(
            logits_SWE.flatten(0, 1).float(),
            labels_SW.flatten(),
            ignore_index=-1,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """One tag per word."""
        best_SW = self._logits(states, rows).argmax(-1).tolist()
        counts = rows.targets["mask_SW"].sum(-1).tolist()
        return [[self.labels[i] for i in best[:count]] for best, count in zip(best_SW, counts, strict=True)]

    def confidences(self, states: HeadInputs, rows: TaskBatch, answers: Sequence[Any]) -> list[Any]:
        """Return the probability of each word's likeliest tag."""
        best_SW = self._logits(states, rows).float().softmax(-1).amax(-1).tolist()
        return [best[: len(answer)] for best, answer in zip(best_SW, answers, strict=True)]

    def _logits(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        if states.classify is None:
            logits: Tensor = self.classifier(gather_words(states.hidden_BTD, rows))
            return logits
        # A made classifier belongs to a row: classify the row's tokens, then gather its words.
        return gather_words(states.classify(states.hidden_BTD), rows)[..., : len(self.labels)]

    def statistics(self, records: Sequence[Any], answers: Sequence[Any]) -> Array:
        """Right words, all words."""
        return tag_statistics([record.tags for record in records], answers)


class Pos(Tagging):
    """Part-of-speech tagging."""

    name = "pos"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)
    summary = "part-of-speech tagging: accuracy"


class Ner(Tagging):
    """Named entity recognition."""

    name = "ner"
    metrics: ClassVar[tuple[Metric, ...]] = (F1,)
    summary = "named entity recognition: entity F1"

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """One tag per word, such that every entity begins with B-."""
        return [repair_bio(tags) for tags in super().decode(states, rows)]

    def statistics(self, records: Sequence[Any], answers: Sequence[Any]) -> Array:
        """Entities found, predicted and true."""
        return span_statistics([record.tags for record in records], answers)
