"""The types of records, one per example whatever the file format, and of the predictions that are made of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Kind = str  # the name of a kind of record, see `polyloom.data.kinds`
Offsets = tuple[tuple[int, int], ...]
Prediction = Any  # a dataclass that the kind of record names, or a generated text


class Record:
    """Base class of records, which are frozen dataclasses."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Text(Record):
    """A line of raw text."""

    text: str


@dataclass(frozen=True, slots=True)
class LabelledText(Record):
    """A text with one label."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Tagged(Record):
    """Words with one tag each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    offsets: Offsets = field(default=(), compare=False)
    """Where each word begins and ends in the text, if raw text was segmented."""


@dataclass(frozen=True, slots=True)
class Tree(Record):
    """Words with the position of each word's head (counted from 1, 0 for the root) and the relation to it."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair(Record):
    """Two texts and the label of the relation between them."""

    first: str
    second: str
    label: str


@dataclass(frozen=True, slots=True)
class Bitext(Record):
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Choices(Record):
    """A premise, a question about it (``cause``, ``effect`` or a sentence), choices, and the position of the right one.

    The position is counted from 0 and written as text, as all labels are.
    """

    premise: str
    question: str
    choices: tuple[str, ...]
    label: str


class Answer(NamedTuple):
    """A slice of a context that answers a question, and the position of its first character."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question(Record):
    """A question about a context, with its gold answers, which are slices of the context."""

    context: str
    question: str
    answers: tuple[Answer, ...]


class Message(NamedTuple):
    """A message of ``system``, ``user`` or ``assistant`` in a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation(Record):
    """Messages in order; a model learns those of the assistant."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, repr=False)
class TagPrediction:
    """One label per word.

    Iterating yields ``(word, label)``.
    """

    words: tuple[str, ...]
    """The words. Of a text: those of the segmenter."""
    labels: tuple[str, ...]
    """The label of each word."""
    scores: tuple[float, ...]
    """The probability of each label. Empty if the task gives none."""
    offsets: Offsets = ()
    """Where each word begins and ends in the text. Empty if the input was words."""

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.words, self.labels, strict=True)

    def __repr__(self) -> str:
        return f"TagPrediction({' '.join(f'{word}/{label}' for word, label in self)})"


@dataclass(frozen=True, repr=False)
class ParsePrediction:
    """A dependency tree.

    Iterating yields ``(word, head, relation)``.
    """

    words: tuple[str, ...]
    """The words. Of a text: those of the segmenter."""
    heads: tuple[int, ...]
    """The position of each word's head, counted from 1; 0 for the root."""
    relations: tuple[str, ...]
    """The relation of each word to its head."""
    scores: tuple[float, ...]
    """The probability of each head with its relation. Empty if the task gives none."""
    offsets: Offsets = ()
    """Where each word begins and ends in the text. Empty if the input was words."""

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        return zip(self.words, self.heads, self.relations, strict=True)

    def __repr__(self) -> str:
        return f"ParsePrediction({' '.join(f'{word}/{relation}→{head}' for word, head, relation in self)})"


@dataclass(frozen=True, repr=False)
class LabelPrediction:
    """One label for a text or a pair of texts."""

    label: str
    """The label. Of choices: the position of the chosen one, counted from 0."""
    score: float | None
    """Its probability. ``None`` if the task gives none."""

    def __repr__(self) -> str:
        return f"LabelPrediction({self.label}{'' if self.score is None else f', {self.score:.2f}'})"


@dataclass(frozen=True, repr=False)
class AnswerPrediction:
    """The answer to a question: a slice of its context."""

    text: str
    start: int
    """Position of its first character in the context."""
    end: int
    """Position behind its last character."""
    score: float | None
    """Its probability among all answers that could be predicted. ``None`` if there are none."""

    def __repr__(self) -> str:
        return f"AnswerPrediction({self.text!r}{'' if self.score is None else f', {self.score:.2f}'})"
