"""Natural language inference: what holds between two texts."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from polyloom.data.records import Kind, Pair, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.metrics.score import ACCURACY, Array, Metric
from polyloom.metrics.tags import tag_statistics
from polyloom.tasks.base import Columns, EncodedExample, Example, HeadInputs, Task, TaskBatch, Tokens, linear_classifier


class Nli(Task):
    """One label per pair, read from the first token."""

    name = "nli"
    kind: ClassVar[Kind] = "pair"
    columns: ClassVar[Columns] = {"first": "ints", "second": "ints", "labels": "ints"}
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)
    summary = "natural language inference: accuracy"

    def __init__(self, labels: Sequence[str], *, width: int) -> None:
        super().__init__(labels, width=width)
        self.classifier = linear_classifier(width, len(labels))

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Both texts as pieces, the label as a list of one number."""
        pairs = [record for record in records if isinstance(record, Pair)]
        firsts, seconds = tokenizer.text([p.first for p in pairs]), tokenizer.text([p.second for p in pairs])
        special = tokenizer.num_special(pair=True)
        for record, first, second in zip(pairs, firsts, seconds, strict=True):
            labels = {} if index is None else {"labels": [index.setdefault(record.label, len(index))]}
            yield {"first": first, "second": second, "length": len(first) + len(second) + special} | labels

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """One row per pair; the longer text is cut first where both do not fit."""
        rows = [example.row for example in examples]
        room = max_length - tokenizer.num_special(pair=True)
        sequences = []
        for row in rows:
            first, second = shorten(row["first"], row["second"], room)
            sequences.append(Tokens(*tokenizer.pair(first, second)))
        targets = {}
        if "labels" in rows[0]:
            targets["labels_B"] = torch.as_tensor(np.array([row["labels"][0] for row in rows], dtype=np.int64))
        return TaskBatch(sequences, range(len(rows)), targets, len(rows))

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Cross entropy over pairs."""
        labels_B = rows.targets["labels_B"]
        logits_BE = self._logits(states).float()
        return F.cross_entropy(
            logits_BE, labels_B, ignore_index=-1, reduction="sum", label_smoothing=self.label_smoothing
        )

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:  # noqa: ARG002
        """One label per pair."""
        return [self.labels[i] for i in self._logits(states).argmax(-1).tolist()]

    def confidences(self, states: HeadInputs, rows: TaskBatch, answers: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Return the probability of each label."""
        best: list[float] = self._logits(states).float().softmax(-1).amax(-1).tolist()
        return best

    def _logits(self, states: HeadInputs) -> Tensor:
        first_B1D = states.hidden_BTD[:, :1]
        if states.classify is not None:
            return states.classify(first_B1D)[:, 0, : len(self.labels)]
        logits: Tensor = self.classifier(first_B1D[:, 0])
        return logits

    def statistics(self, records: Sequence[Any], answers: Sequence[Any]) -> Array:
        """Right or wrong, and one."""
        return tag_statistics([[record.label] for record in records], [[answer] for answer in answers])


def shorten(first: Sequence[int], second: Sequence[int], room: int) -> tuple[list[int], list[int]]:
    """Cut the longer of two texts from its end until both fit."""
    half = room // 2
    if len(first) + len(second) > room:
        keep = room - len(second) if len(second) <= half else max(room - half, 0)
        first, second = (
            (first[:keep], second[: room - keep]) if len(first) > half else (first, second[: room - len(first)])
        )
    return [int(i) for i in first], [int(i) for i in second]
