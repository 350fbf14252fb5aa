"""Split paragraphs into sentences by their punctuation, in any script, and join them again."""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

_CLOSING = r"[\"'’”»›)\]」』）】]*"
_WIDE = "。！？｡"  # in scripts without spaces: no space before the next sentence
_NARROW = ".!?…।॥؟۔։።፧。"
# A row of full stops is looked at once, from its beginning: else a text of full stops would take quadratic time.
_START = f"(?<![{''.join(set(_NARROW) - set(_WIDE))}])"
_END = re.compile(rf"[{_WIDE}]+{_CLOSING}\s*|{_START}[{_NARROW}]++{_CLOSING}(?=\s)\s+")
# A letter or a short title before a full stop rarely ends a sentence.
_ABBREVIATED = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|[A-Z][a-z]?|Mrs?|Ms|Dr|Prof|Sr|Jr|St|Hr|Fr|Nr|Bd|vs|etc|e\.g|i\.e|z\.B|d\.h|u\.a|p\.ex|cf|ca|bzw|usw|tzn|np|т\.е|т\.д)\.$"
)

_CLAUSE = re.compile(r"[,;:،؛，、；：—–](?=\s)\s*|[，、；：]")
_SPACE = re.compile(r"\s+")
_LONGEST = 16  # letters that an abbreviation and the space before it certainly fit into
_MOST = 1024  # borders that are looked at to find the next part


def split_sentences(text: str) -> list[str]:
    """Split a paragraph into sentences; none is empty, and only white space between them is lost."""
    sentences, begin = [], 0
    for match in _END.finditer(text):
        stop = match.start() + len(match[0].rstrip())
        following = text[match.end() : match.end() + 1]
        if following and (following.islower() or _ABBREVIATED.search(text[max(begin, stop - _LONGEST) : stop])):
            continue
        sentences.append(text[begin : match.end()])
        begin = match.end()
    sentences.append(text[begin:])
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def split_to_fit(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a text into parts that fit, at the ends of sentences; a long sentence at clauses, words or letters."""
    return [part for sentence in split_sentences(text) for part in _split_sentence(sentence, fits, _CLAUSE)]


def _split_sentence(text: str, fits: Callable[[str], bool], border: re.Pattern[str] | None) -> list[str]:
    """Split a sentence at a border such that as much as possible is in each part; what is too long, more finely."""
    if fits(text) or len(text) < 2:
        return [text]
    if border is None:
        half = len(text) // 2
        return [part for segment in (text[:half], text[half:]) for part in _split_sentence(segment, fits, None)]
    finer = _SPACE if border is _CLAUSE else None
    ends = [*(match.end() for match in border.finditer(text)), len(text)]
    parts, begin, at = [], 0, 0
    while begin < len(text):
        candidates = ends[at : at + _MOST]
        count = bisect_left(candidates, True, key=partial(_too_long, text, begin, fits))
        at += max(count, 1)
        segment = text[begin : ends[at - 1]].strip()
        parts += [segment] if count else _split_sentence(segment, fits, finer)
        begin = ends[at - 1]
    return [part for part in parts if part]


def _too_long(text: str, begin: int, fits: Callable[[str], bool], end: int) -> bool:
    return not fits(text[begin:end].strip())


def join_sentences(sentences: Sequence[str]) -> str:
    """Join sentences with a space between two, but none after a wide full stop."""
    joined = ""
    for sentence in sentences:
        joined += ("" if not joined or joined[-1] in _WIDE else " ") + sentence
    return joined
