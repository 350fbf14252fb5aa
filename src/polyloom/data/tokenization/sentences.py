"""Split paragraphs into sentences by their punctuation, in any script, and join them again."""

import re
from bisect import bisect_right
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
Measure = Callable[[Sequence[str]], Sequence[int]]


def split_sentences(text: str) -> list[str]:
    """Split a paragraph into sentences; none is empty, and only white space between them is lost."""
    sentences, begin = [], 0
    for match in _END.finditer(text):
        stop = match.start() + len(match[0].rstrip())
        following = text[match.end() : match.end() + 1]
        # A sentence does not begin with a small letter. Scripts without case have none, so there only the list of
        # abbreviations helps.
        if following and (following.islower() or _ABBREVIATED.search(text[max(begin, stop - _LONGEST) : stop])):
            continue
        sentences.append(text[begin : match.end()])
        begin = match.end()
    sentences.append(text[begin:])
    return [sentence.strip() for sentence in sentences if sentence.strip()]


def split_to_fit(text: str, measure: Measure, room: int) -> list[str]:
    """Split a text into parts that fit, at the ends of sentences; a long sentence at clauses, words or letters.

    Args:
        text: The text.
        measure: Returns the sizes of texts, such as their numbers of tokens.
        room: Size of a part that fits.
    """
    sentences = split_sentences(text)
    parts = []
    for sentence, size in zip(sentences, measure(sentences), strict=True):
        parts += [sentence] if size <= room else _split_at(_CLAUSE, sentence, measure, room)
    return parts


def _split_at(border: re.Pattern[str], text: str, measure: Measure, room: int) -> list[str]:
    """Split a text that is too long at borders, such that each part is about as long as it may be.

    What has no border, and is too long, is split more finely.
    """
    ends = [*(match.end() for match in border.finditer(text)), len(text)]  # where a part may end
    letters_that_fit = max(len(text) * room // max(measure([text])[0], 1), 1)  # probably: tokens differ in length
    finer = partial(_split_at, _SPACE) if border is _CLAUSE else _split_letters
    parts: list[str] = []
    begin = first = 0  # of the next part: its first letter, and the first of `ends` behind it
    while begin < len(text):
        # Take as many borders as probably fit, and fewer letters each time that it turns out to be too long. Measuring
        # after every border would take quadratic time.
        letters = letters_that_fit
        while True:
            last = max(bisect_right(ends, begin + letters, lo=first), first + 1)
            part = text[begin : ends[last - 1]].strip()
            fits = measure([part])[0] <= room
            if fits or last == first + 1:
                break
            letters = letters * 4 // 5
        parts += [part] if fits else finer(part, measure, room)
        begin, first = ends[last - 1], last
    return [part for part in parts if part]


def _split_letters(text: str, measure: Measure, room: int) -> list[str]:
    """Split a text into pieces of about equal length, again if one is still too long."""
    size = measure([text])[0]
    if size <= room or len(text) < 2:
        return [text]
    step = max(len(text) // (size // max(room, 1) + 1), 1)
    parts = []
    for start in range(0, len(text), step):
        parts += _split_letters(text[start : start + step], measure, room)
    return parts


def join_sentences(sentences: Sequence[str]) -> str:
    """Join sentences with a space between two, but none after a wide full stop."""
    joined = ""
    for sentence in sentences:
        joined += ("" if not joined or joined[-1] in _WIDE else " ") + sentence
    return joined
