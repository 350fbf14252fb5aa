"""Tagging words: parts of speech and named entities."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from polyloom.data.kinds import Format
from polyloom.data.records import Kind, Record, Tagged, TagPrediction
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.metrics.score import ACCURACY, F1, Array, Metric
from polyloom.metrics.spans import chunk_statistics, repair_bio, span_statistics
from polyloom.metrics.tags import majority_share, tag_statistics
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Head,
    HeadInputs,
    TaskBatch,
    TaskConfig,
    linear_classifier,
)
from polyloom.tasks.words import WordTask, encode_words, gather_words


class Tagging(WordTask):
    """Base class of tasks with one label per word, by a linear or generated classifier on the word's vector."""

    export_head: ClassVar[Head | None] = "token-classification"
    kind: ClassVar[Kind] = "tags"
    columns: ClassVar[Columns] = {"tokens": "ints", "counts": "ints", "reads": "ints", "labels": "ints"}

    def __init__(self, config: TaskConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.classifier = linear_classifier(width, len(self.labels))

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode words, with their tags as numbers."""
        tagged = [record for record in records if isinstance(record, Tagged)]
        for record, row in zip(tagged, encode_words([r.words for r in tagged], tokenizer), strict=True):
            labels = {} if index is None else {"labels": [index.setdefault(tag, len(index)) for tag in record.tags]}
            yield row | labels

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy over words."""
        labels_XW = rows.targets["labels_XW"]
        logits_XWE = self._logits(states, rows)
        return F.cross_entropy(
            logits_XWE.flatten(0, 1).float(),
            labels_XW.flatten(),
            ignore_index=-1,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Predict one tag per word."""
        best_XW = self._logits(states, rows).argmax(-1).tolist()
        counts = rows.targets["mask_XW"].sum(-1).tolist()
        return [[self.labels[i] for i in best[:count]] for best, count in zip(best_XW, counts, strict=True)]

    def confidences(self, states: HeadInputs, rows: TaskBatch, predictions: Sequence[Any]) -> list[Any]:
        """Return the probability of each word's most probable tag."""
        best_XW = self._logits(states, rows).float().softmax(-1).amax(-1).tolist()
        return [best[: len(prediction)] for best, prediction in zip(best_XW, predictions, strict=True)]

    def _logits(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        if states.classify is None:
            logits: Tensor = self.classifier(gather_words(states.hidden_BTD, rows))
            return logits
        # A generated classifier belongs to a row: classify the row's tokens, then gather its words.
        return gather_words(self.logits(states), rows)

    def logits(self, states: HeadInputs) -> Tensor:
        """Compute the logits of every token."""
        if states.classify is not None:
            return states.classify(states.hidden_BTD)[..., : len(self.labels)]
        logits: Tensor = self.classifier(states.hidden_BTD)
        return logits

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Count right words and all words."""
        return tag_statistics([record.tags for record in records], predictions)

    @classmethod
    def majority(cls, records: Iterable[Record]) -> float:
        """Score the most frequent tag."""
        return majority_share(tag for record in records if isinstance(record, Tagged) for tag in record.tags)

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """List the words with a wrong tag."""
        return [i for i, (gold, tag) in enumerate(zip(record.tags, prediction, strict=True)) if gold != tag]

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> TagPrediction:
        """Return the words with their tags."""
        return TagPrediction(record.words, tuple(decoded), tuple(score or ()), record.offsets)


class Pos(Tagging):
    """Part-of-speech tagging."""

    name = "pos"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, F1)
    summary = "part-of-speech tagging: accuracy, F1"

    def measure(self, records: Sequence[Any], predictions: Sequence[Any], language: str) -> Mapping[Metric, Array]:  # noqa: ARG002
        """Count right words, and right chunks of words with the same tag as seqeval does."""
        chunks_NP = chunk_statistics([record.tags for record in records], predictions)
        return {ACCURACY: self.statistics(records, predictions), F1: chunks_NP}


class Ner(Tagging):
    """Named entity recognition."""

    name = "ner"
    metrics: ClassVar[tuple[Metric, ...]] = (F1,)
    summary = "named entity recognition: entity F1"
    outputs: ClassVar[tuple[Format, ...]] = ("columns", "jsonl")  # CoNLL-U has no column for entities

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Predict one tag per word, such that every entity begins with B-."""
        return [repair_bio(tags) for tags in super().decode(states, rows)]

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Count entities that are right, predicted and true."""
        return span_statistics([record.tags for record in records], predictions)

    @classmethod
    def majority(cls, records: Iterable[Record]) -> float:  # noqa: ARG003 - whatever they are
        """Score the prediction that there are no entities, whose F1 is 0."""
        return 0.0
