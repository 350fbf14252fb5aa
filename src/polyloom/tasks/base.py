"""What a task is: how records become rows, the head, the loss, the answer, the score."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.data.records import Kind, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.metrics.score import Array, Metric

EncodedExample = Mapping[str, Any]  # one example at rest: integers and arrays of integers, by column
Columns = Mapping[str, Literal["int", "ints"]]


class Tokens(NamedTuple):
    """The tokens of one row of a batch, special tokens included."""

    ids: Sequence[int]
    types: Sequence[int] | None = None


class Example(NamedTuple):
    """An example at rest, whose condition says the task; its key seeds whatever is random about it."""

    condition: Condition
    row: EncodedExample
    key: int = 0


@dataclass(frozen=True)
class TaskBatch:
    """Some examples of one task as rows of a batch; a long sentence takes several.

    Attributes:
        sequences: Tokens of each row.
        examples: The example each row belongs to, by its position.
        targets: What the head needs beside hidden states.
        count: How many terms the loss sums up.
        decoder: What the decoder of each row is given, for tasks that have one.
    """

    sequences: Sequence[Tokens]
    examples: Sequence[int]
    targets: Mapping[str, Tensor]
    count: int
    decoder: Sequence[Tokens] = ()

    def to(self, device: Any) -> "TaskBatch":
        """Move the targets."""
        return replace(self, targets={name: tensor.to(device) for name, tensor in self.targets.items()})


@dataclass(frozen=True)
class HeadInputs:
    """What a head sees of its rows.

    Attributes:
        hidden_BTD: Last hidden states.
        vocabulary: The backbone's projection of single states ``[N, D]`` to its vocabulary, with the inverse adapter
            of the row that each is from ``[N]``; to some pieces of it only, if they are given.
        classify: The classifier that the method made for each row, where it makes classifiers.
    """

    hidden_BTD: Tensor
    vocabulary: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    classify: Callable[[Tensor], Tensor] | None = None


class Task(nn.Module, ABC):
    """One task with its head.

    Args:
        labels: Its label set, in order; empty where it has none.
        width: Of the hidden states.

    Attributes:
        kind: Of the records it is made from.
        columns: Of its examples at rest, beside ``length``.
        metrics: Its scores, the one that selects checkpoints first.
        summary: One line for `polyloom list tasks`.
        needs_labels: Whether it has a label set.
        generates: Whether its answers are text that a decoder generates.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    columns: ClassVar[Columns]
    metrics: ClassVar[tuple[Metric, ...]]
    summary: ClassVar[str]
    needs_labels: ClassVar[bool] = True
    generates: ClassVar[bool] = False
    label_smoothing: float = 0.0

    def __init__(self, labels: Sequence[str], *, width: int) -> None:  # noqa: ARG002 - for heads
        super().__init__()
        self.labels = tuple(labels)

    @classmethod
    def records(cls, corpus: Corpus, condition: Condition) -> Iterator[Record]:  # noqa: ARG003 - for translation
        """What a corpus has for this task."""
        return corpus.records(cls.kind)

    @classmethod
    @abstractmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Turn records into examples at rest.

        Args:
            records: Of this task's kind.
            tokenizer: The tokenizer.
            index: Numbers of the labels, to which new ones are added; without it labels are left out.
        """

    @abstractmethod
    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out examples as rows."""

    @abstractmethod
    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum of the loss over `rows.count` terms."""

    @abstractmethod
    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """The answer for each example."""

    def confidences(self, states: HeadInputs, rows: TaskBatch, answers: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Return the probability of each decoded answer, one per word where an answer has one label per word."""
        return [None] * len(answers)

    def statistics(self, records: Sequence[Any], answers: Sequence[Any]) -> Array:
        """What each answer contributes to the scores ``[N, P]``, where all metrics have the same parts."""
        raise NotImplementedError

    def measure(self, records: Sequence[Any], answers: Sequence[Any], language: str) -> Mapping[Metric, Array]:  # noqa: ARG002
        """The parts of every metric, the one that selects first; `language` is that of the answers."""
        return dict.fromkeys(self.metrics, self.statistics(records, answers))

    @classmethod
    def relabel(cls, row: EncodedExample, numbers: Array) -> EncodedExample:
        """Translate the labels of an example at rest into this model's."""
        return {**row, "labels": numbers[row["labels"]]} if "labels" in row else row


def linear_classifier(width: int, num_labels: int) -> nn.Linear:
    """A classifier that begins near zero, as BERT's do."""
    classifier = nn.Linear(width, num_labels)
    nn.init.normal_(classifier.weight, std=0.02)
    nn.init.zeros_(classifier.bias)
    return classifier
