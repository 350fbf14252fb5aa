"""Causal language modelling on raw text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyloom.data.records import Kind, Record, Text
from polyloom.data.shuffle import generator
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import PolyloomError
from polyloom.metrics.score import BITS_PER_BYTE, PERPLEXITY, Array, Metric
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    Head,
    HeadInputs,
    Task,
    TaskBatch,
    Tokens,
    vocabulary_losses,
)
from polyloom.tasks.padding import padded, tokens_to_predict


class CausalLm(Task):
    """Causal language modelling with the backbone's head.

    Each text is wrapped in pretraining's begin and end tokens, as far as they are known. Training predicts the end as
    well; scores are of the text alone.
    """

    name = "lm"
    raw_text = True
    uses_lm_head = True
    addable = False
    export_head: ClassVar[Head | None] = "language-modelling"
    kind: ClassVar[Kind] = "text"
    columns: ClassVar[Columns] = {"tokens": "ints"}
    metrics: ClassVar[tuple[Metric, ...]] = (BITS_PER_BYTE, PERPLEXITY)
    summary = "causal language modelling on raw text: bits per byte, perplexity"
    needs_labels = False

    @classmethod
    def encode(
        cls,
        records: Sequence[Record],
        tokenizer: Tokenizer,
        index: dict[str, int] | None = None,  # noqa: ARG003 - no labels
    ) -> Iterator[EncodedExample]:
        """Encode text with its begin and its end. Every token but the first is predicted."""
        begin, end = around_texts(tokenizer)
        for ids in tokenizer.text([record.text for record in records if isinstance(record, Text)]):
            yield {"tokens": [begin, *ids, end], "length": len(ids) + 1}

    def excerpt(self, row: EncodedExample, key: int, *, max_length: int) -> EncodedExample:
        """Cut a long text at a random place."""
        tokens = row["tokens"]
        if len(tokens) <= max_length + 1:
            return row
        start = int(generator((key,)).integers(len(tokens) - max_length))
        return {**row, "tokens": tokens[start : start + max_length + 1], "length": max_length}

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:  # noqa: ARG002
        """Return whether `collate` cuts a text: never, a long one takes several rows."""
        return False

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:  # noqa: ARG002
        """Lay out a text as a row; a long one takes several, each of which begins with the last token of the former.

        Texts that are packed into one row have positions of their own, and none sees another.
        """
        sequences, owners, labels, ends = [], [], [], []
        for number, (_, row, _) in enumerate(examples):
            tokens, targets, starts = row["tokens"], self.targets(row), row.get("starts", [0])
            # Positions begin again with every packed text: attention keeps apart what lies between two zeros.
            first = np.zeros(len(tokens), dtype=np.int64)  # where the text of each token begins
            first[starts] = starts
            first = np.maximum.accumulate(first)
            # A row reads tokens[start:stop] and predicts the token behind each, so every token is predicted once.
            for start in range(0, len(tokens) - 1, max_length):
                stop = min(start + max_length, len(tokens) - 1)
                positions = np.arange(start, stop) - np.maximum(first[start:stop], start)
                sequences.append(Tokens(tokens[start:stop], positions=positions))
                labels.append(targets[start + 1 : stop + 1])
                ends.append(stop == len(tokens) - 1)
                owners.append(number)
        labels_BT = padded(labels, -1)
        tensors = {"labels_BT": labels_BT, "ends_B": torch.tensor(ends), **tokens_to_predict(labels_BT)}
        return TaskBatch(sequences, owners, tensors, int((labels_BT >= 0).sum()))

    def targets(self, row: EncodedExample) -> Array:
        """Return the tokens of a row that are predicted, and -1 for all others: the first of each text."""
        targets = np.array(row["tokens"], dtype=np.int64)
        targets[row.get("starts", [0])] = -1
        return targets

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy over all tokens but the first of each text."""
        return self._losses(states, rows).sum()

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Return for each text the sum of its losses and their number, without its end."""
        # A long text has several rows, whose sums are added up.
        counted_BT = self.counted(rows)
        sums_B = self._losses(states, rows).masked_fill(~counted_BT, 0.0).sum(-1).double().tolist()
        by_example = dict.fromkeys(rows.examples, (0.0, 0))
        for example, row_sum, count in zip(rows.examples, sums_B, counted_BT.sum(-1).tolist(), strict=True):
            total, tokens = by_example[example]
            by_example[example] = total + row_sum, tokens + count
        return [by_example[example] for example in sorted(by_example)]

    def counted(self, rows: TaskBatch) -> Tensor:
        """Return which tokens are scored: those that are predicted, without the end of the text."""
        # Only the last row of a text has its end, which is the last token that the row predicts.
        counted_BT, ends_B = rows.targets["labels_BT"] >= 0, rows.targets["ends_B"]
        last_B = counted_BT.sum(-1) - 1
        counted_BT[ends_B, last_B[ends_B]] = False
        return counted_BT

    def _losses(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Return the loss of every token, 0 where none is predicted."""
        labels_BT, losses_N = rows.targets["labels_BT"], vocabulary_losses(states, rows)
        return torch.zeros(labels_BT.shape, device=losses_N.device).masked_scatter(labels_BT >= 0, losses_N)

    def measure(self, records: Sequence[Any], predictions: Sequence[Any], language: str) -> Mapping[Metric, Array]:  # noqa: ARG002
        """Return the sum of losses, the number of tokens and that of the bytes of the text in UTF-8."""
        sums = np.array(predictions, dtype=np.float64).reshape(-1, 2)
        bytes_N1 = np.array([[len(self.scored_text(record).encode())] for record in records], dtype=np.float64)
        return {BITS_PER_BYTE: np.concatenate([sums, bytes_N1], axis=1), PERPLEXITY: sums}

    def scored_text(self, record: Any) -> str:
        """Return what is predicted of a record."""
        text: str = record.text
        return text

    @classmethod
    def prompt_tokens(cls, prompt: Any, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens that a text begins with, to be continued."""
        (row,) = cls.encode([Text(prompt)], tokenizer)
        return list(row["tokens"][:-1])

    @classmethod
    def opening(cls, record: Any, *, letters: int) -> tuple[Any, str]:
        """Divide a record into a prompt and what follows it: the first `letters` of a text, in the middle.

        The prompt ends before a space if there is one.
        """
        text = record.text[:letters]
        middle = text.rfind(" ", 0, len(text) // 2 + 1)
        middle = len(text) // 2 if middle < 1 else middle
        return text[:middle], text[middle:]


def around_texts(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the tokens that wrap a text."""
    if tokenizer.text_begin is None or tokenizer.text_end is None:
        raise PolyloomError("tokenizer: has no eos_token, which ends a text. Set it in its tokenizer_config.json.")
    return tokenizer.text_begin, tokenizer.text_end
