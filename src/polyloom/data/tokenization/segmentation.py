"""Split raw text into words at white space (a stand-in for the segmenter by Unicode's rules)."""

import re
from typing import NamedTuple


class Word(NamedTuple):
    """A word of a text: ``text[start:end]``."""

    text: str
    start: int
    end: int


def segment(text: str, language: str | None = None) -> list[Word]:  # noqa: ARG001 - decides about apostrophes later
    """Split a text into words."""
    return [Word(match[0], match.start(), match.end()) for match in re.finditer(r"\S+", text)]
