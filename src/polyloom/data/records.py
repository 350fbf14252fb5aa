"""The types of records: one record per example, whatever the file format."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "labelled", "tags", "tree", "pair", "bitext"]


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


Record = Text | LabelledText | Tagged | Tree | Pair | Bitext
