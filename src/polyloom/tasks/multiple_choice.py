"""Multiple choice: which of several texts is the cause or the effect of a premise, or answers a question about it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyloom.data.records import Choices, Kind, LabelPrediction, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.metrics.score import ACCURACY, Array, Metric
from polyloom.metrics.tags import majority_share, tag_statistics
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    choice_loss,
    linear_classifier,
)
from polyloom.tasks.nli import shorten

# XCOPA writes these two words in every language; as sentences they are like the questions of Social IQa.
QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


class MultipleChoice(Task):
    """Multiple choice: every choice is a row, and the rows of an example are scored against one another."""

    name = "copa"
    kind: ClassVar[Kind] = "choices"
    columns: ClassVar[Columns] = {"premise": "ints", "choices": "ints", "counts": "ints", "answer": "int"}
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY,)
    summary = "multiple choice (XCOPA, COPA, Social IQa): accuracy"
    needs_labels = False

    def __init__(self, config: TaskConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.classifier = linear_classifier(width, 1)

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode the premise with its question, and all choices one after another with their lengths."""
        kept = [record for record in records if isinstance(record, Choices)]
        premises = tokenizer.text([f"{r.premise} {QUESTIONS.get(r.question, r.question)}".strip() for r in kept])
        # All choices of all records are tokenized together, which is faster, and then taken record by record.
        choices, begin = tokenizer.text([choice for record in kept for choice in record.choices]), 0
        special = tokenizer.num_special(pair=True)
        for record, premise in zip(kept, premises, strict=True):
            texts = choices[begin : begin + len(record.choices)]
            begin += len(record.choices)
            row: dict[str, Any] = {
                "premise": premise,
                "choices": [token for text in texts for token in text],
                "counts": [len(text) for text in texts],
                "length": sum(len(premise) + len(text) + special for text in texts),
            }
            yield row if index is None else row | {"answer": int(record.label)}

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:
        """Return whether the row of the longest choice is cut."""
        return int(len(row["premise"]) + max(row["counts"])) > max_length - tokenizer.num_special(pair=True)

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per choice, those of an example one after another."""
        # X examples have up to C choices each; `row_XC` says which row of the batch a choice is.
        counts_X = [len(example.row["counts"]) for example in examples]
        sequences: list[Tokens] = []
        row_XC = torch.zeros(len(examples), max(counts_X), dtype=torch.long)
        mask_XC = torch.zeros(row_XC.shape, dtype=torch.bool)
        for number, (_, row, _) in enumerate(examples):
            begin = len(sequences)
            sequences += self.layout(row, tokenizer=tokenizer, max_length=max_length)
            row_XC[number, : len(sequences) - begin] = torch.arange(begin, len(sequences))
            mask_XC[number, : len(sequences) - begin] = True
        targets = {"row_XC": row_XC, "mask_XC": mask_XC}
        if "answer" in examples[0].row:
            targets["answer_X"] = torch.tensor([int(example.row["answer"]) for example in examples])
        owners = [number for number, count in enumerate(counts_X) for _ in range(count)]
        return TaskBatch(sequences, owners, targets, len(examples))

    def layout(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> list[Tokens]:
        """Lay out one row per choice; the longer text is cut first."""
        room = max_length - tokenizer.num_special(pair=True)
        return [Tokens(*tokenizer.pair(*shorten(row["premise"], choice, room))) for choice in choices_of(row)]

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy over examples."""
        targets = rows.targets
        scores_XC = self._scores(states, rows)
        return choice_loss(scores_XC, targets["mask_XC"], targets["answer_X"], smoothing=self.label_smoothing)

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Predict the position of a choice, as text."""
        return [str(position) for position in self._scores(states, rows).argmax(-1).tolist()]

    def confidences(self, states: HeadInputs, rows: TaskBatch, predictions: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Return the probability of each predicted choice."""
        best: list[float] = self._scores(states, rows).softmax(-1).amax(-1).tolist()
        return best

    def _scores(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Score the choices of each example; minus infinity where there is none."""
        scores_B = self.row_scores(states, rows)
        return torch.where(rows.targets["mask_XC"], scores_B[rows.targets["row_XC"]], -torch.inf)

    def row_scores(self, states: HeadInputs, rows: TaskBatch) -> Tensor:  # noqa: ARG002 - for likelihoods
        """Score every row by its first token."""
        scores_B: Tensor = self.classifier(states.hidden_BTD[:, 0])[:, 0].float()
        return scores_B

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Count right choices and all examples."""
        return tag_statistics([[record.label] for record in records], [[label] for label in predictions])

    @classmethod
    def majority(cls, records: Iterable[Record]) -> float:
        """Score the most frequent position."""
        return majority_share(record.label for record in records if isinstance(record, Choices))

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """Compare the position."""
        return [] if prediction == record.label else [0]

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> LabelPrediction:  # noqa: ARG003
        """Return the position of the choice with its probability."""
        return LabelPrediction(decoded, score)


def choices_of(row: EncodedExample) -> list[Any]:
    """Return the tokens of each choice of an encoded example."""
    ends = zip(row["counts"], np.cumsum(row["counts"]), strict=True)
    return [row["choices"][end - count : end] for count, end in ends]
