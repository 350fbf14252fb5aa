"""Multiple choice by likelihood: a decoder chooses the most probable continuation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from polyloom.data.records import Choices, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.tasks.base import (
    EncodedExample,
    Example,
    Head,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    vocabulary_losses,
)
from polyloom.tasks.lm import around_texts
from polyloom.tasks.multiple_choice import QUESTIONS, MultipleChoice, choices_of
from polyloom.tasks.padding import tokens_to_predict


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig(TaskConfig):
    """Settings of multiple choice by likelihood."""

    normalize: Literal["none", "tokens"] = "none"
    """What the log-likelihood of a choice is divided by: nothing, or the number of its ``tokens``. Without it short
    choices are preferred."""


class Choice(MultipleChoice):
    """Multiple choice by the likelihood of each choice behind the premise and the question, with the backbone's head.

    Labels of a classification are choices too: ``{"premise": "…", "question": "", "choices": ["good", "bad"]}``.
    """

    Config: ClassVar[type[TaskConfig]] = ChoiceConfig
    config: ChoiceConfig
    name = "choice"
    uses_lm_head = True
    export_head: ClassVar[Head | None] = "language-modelling"
    summary = "multiple choice by the likelihood of the choices, for decoders: accuracy"

    def __init__(self, config: ChoiceConfig, *, width: int) -> None:
        Task.__init__(self, config, width=width)  # without a classifier

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode the premise with its question, and all choices as they follow it, with their lengths."""
        kept = [record for record in records if isinstance(record, Choices)]
        premises = tokenizer.text([f"{r.premise} {QUESTIONS.get(r.question, r.question)}".strip() for r in kept])
        # All choices of all records are tokenized together, which is faster, and then taken record by record.
        choices = tokenizer.text([f"{tokenizer.gap}{choice}" for record in kept for choice in record.choices])
        begin = 0
        for record, premise in zip(kept, premises, strict=True):
            texts = choices[begin : begin + len(record.choices)]
            begin += len(record.choices)
            row: dict[str, Any] = {
                "premise": [around_texts(tokenizer)[0], *premise],
                "choices": [token for text in texts for token in text],
                "counts": [len(text) for text in texts],
                "length": sum(len(premise) + len(text) for text in texts),
            }
            yield row if index is None else row | {"answer": int(record.label)}

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:  # noqa: ARG002
        """Return whether the row of the longest choice is cut."""
        return int(len(row["premise"]) + max(row["counts"])) > max_length + 1

    def layout(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> list[Tokens]:  # noqa: ARG002
        """Lay out one row per choice, without its last token, which is not read; of a long premise the end is kept."""
        rows = []
        for choice in choices_of(row):
            kept = choice[:max_length]
            ids = [int(token) for token in (*row["premise"][-(max_length + 1 - len(kept)) :], *kept)][:-1]
            rows.append(Tokens(ids, positions=range(len(ids))))
        return rows

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per choice, with the tokens of the choices as targets."""
        data = super().collate(examples, tokenizer=tokenizer, max_length=max_length)
        choices = [choice[:max_length] for example in examples for choice in choices_of(example.row)]
        # A state predicts the next token, and the last token is not read: so the labels of a choice end where its row
        # ends, one place before its tokens.
        ends = [len(sequence.ids) for sequence in data.sequences]
        labels_BT = torch.full((len(choices), max(ends)), -1)
        for i, (choice, end) in enumerate(zip(choices, ends, strict=True)):
            labels_BT[i, end - len(choice) : end] = torch.tensor(np.asarray(choice, dtype=np.int64))
        return replace(data, targets={**data.targets, "labels_BT": labels_BT, **tokens_to_predict(labels_BT)})

    def row_scores(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the log-probabilities of a choice's tokens."""
        labels_BT, logs_N = rows.targets["labels_BT"], -vocabulary_losses(states, rows)
        scores_B = torch.zeros(len(labels_BT), device=logs_N.device).index_add(0, rows.targets["row_N"], logs_N)
        return scores_B / (labels_BT >= 0).sum(-1) if self.config.normalize == "tokens" else scores_B
