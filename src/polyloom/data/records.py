"""What corpora are made of: one typed record per example, whatever the file format."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "labelled", "tags", "tree", "pair", "bitext"]


@dataclass(frozen=True, slots=True)
class Text:
    """A line of raw text."""

    text: str


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its label."""

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
    """Two texts and what holds between them."""

    first: str
    second: str
    label: str


@dataclass(frozen=True, slots=True)
class Bitext:
    """A sentence and its translation."""

    source: str
    target: str


Record = Text | LabelledText | Tagged | Tree | Pair | Bitext
