"""Split paragraphs into sentences by their punctuation, in any script, and join them again."""

import re
from collections.abc import Sequence

_CLOSING = r"[\"'’”»›)\]」』）】]*"
_WIDE = "。！？｡"  # in scripts without spaces: no space before the next sentence
_NARROW = ".!?…।॥؟۔։።፧。"
_END = re.compile(rf"[{_WIDE}]+{_CLOSING}\s*|[{_NARROW}]+{_CLOSING}(?=\s)\s+")
# A letter or a short title before a full stop rarely ends a sentence.
_ABBREVIATED = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|[A-Z][a-z]?|Mrs?|Ms|Dr|Prof|Sr|Jr|St|Hr|Fr|Nr|Bd|vs|etc|e\.g|i\.e|z\.B|d\.h|u\.a|p\.ex|cf|ca|bzw|usw|tzn|np|т\.е|т\.д)\.$"
)


def split_sentences(text: str) -> list[str]:
    """Split a paragraph into sentences; none is empty, and only white space between them is lost."""
    sentences, begin = [], 0
    for match in _END.finditer(text):
        following = text[match.end() :]
        if following and (following[0].islower() or _ABBREVIATED.search(text[begin : match.end()].rstrip())):
            continue
        sentences.append(text[begin : match.end()])
        begin = match.end()
    sentences.append(text[begin:])
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def join_sentences(sentences: Sequence[str]) -> str:
    """Join sentences with a space between two, but none after a wide full stop."""
    joined = ""
    for sentence in sentences:
        joined += ("" if not joined or joined[-1] in _WIDE else " ") + sentence
    return joined
