"""The types of records: one record per example, whatever the file format."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["text", "labelled", "tags", "tree", "pair", "bitext", "choices", "question", "conversation"]


@dataclass(frozen=True, slots=True)
class Text:
    """A line of raw text."""

    text: str


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text with one label."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """Words with one tag each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """Words with the position of each word's head (counted from 1, 0 for the root) and the relation to it."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and the label of the relation between them."""

    first: str
    second: str
    label: str


@dataclass(frozen=True, slots=True)
class Bitext:
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Choices:
    """A premise, a question about it (``cause``, ``effect`` or a sentence), choices, and the position of the right one.

    The position is counted from 0 and written as text, as all labels are.
    """

    premise: str
    question: str
    choices: tuple[str, ...]
    label: str


class Answer(NamedTuple):
    """A stretch of a context that answers a question, and the position of its first character."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context, with its gold answers, which are stretches of the context."""

    context: str
    question: str
    answers: tuple[Answer, ...]


class Message(NamedTuple):
    """What ``system``, ``user`` or ``assistant`` says in a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order; those of the assistant are what a model learns to say."""

    messages: tuple[Message, ...]


Record = Text | LabelledText | Tagged | Tree | Pair | Bitext | Choices | Question | Conversation
