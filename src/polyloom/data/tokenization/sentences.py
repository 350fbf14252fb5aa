"""Paragraphs cut into sentences by their punctuation, in any script, and put together again."""

import re
from collections.abc import Sequence

_CLOSING = r"[\"'’”»›)\]」』）】]*"
_WIDE = "。！？｡"  # of scripts without spaces: the next sentence begins at once
_NARROW = ".!?…।॥؟۔։።፧。"
_END = re.compile(rf"[{_WIDE}]+{_CLOSING}\s*|[{_NARROW}]+{_CLOSING}(?=\s)\s+")
# A letter or a short title before a full stop rarely ends a sentence.
_ABBREVIATED = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|[A-Z][a-z]?|Mrs?|Ms|Dr|Prof|Sr|Jr|St|Hr|Fr|Nr|Bd|vs|etc|e\.g|i\.e|z\.B|d\.h|u\.a|p\.ex|cf|ca|bzw|usw|tzn|np|т\.е|т\.д)\.$"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph; never empty ones, and nothing but white space is lost between them."""
    found, begin = [], 0
    for match in _END.finditer(text):
        following = text[match.end() :]
        if following and (following[0].islower() or _ABBREVIATED.search(text[begin : match.end()].rstrip())):
            continue
        found.append(text[begin : match.end()])
        begin = match.end()
    found.append(text[begin:])
    return [sentence.strip() for sentence in found if sentence.strip()]


def join_sentences(sentences: Sequence[str]) -> str:
    """A paragraph of sentences: a space between two, but none behind a wide full stop."""
    joined = ""
    for sentence in sentences:
        joined += ("" if not joined or joined[-1] in _WIDE else " ") + sentence
    return joined
