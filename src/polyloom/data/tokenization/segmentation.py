r"""Split raw text into words, with their offsets into the text.

Words end at the word boundaries of Unicode (UAX #29), except where treebanks agree on something else: an address, an
abbreviation such as ``z.B.`` and a row of punctuation marks such as ``...`` are one word. Chinese, Japanese, Thai, Lao,
Khmer and Burmese have no spaces between words. Their words are found by the dictionaries of ICU (package ``icu4py``).

Clitics are not split off: ``don't`` is one word, like a multiword token of CoNLL-U.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import regex

from polyloom.errors import PolyloomError

# Languages whose treebanks keep compounds with hyphens together ("ex-ministre"); others split them ("well - known").
_COMPOUNDS = frozenset({
    "af", "be", "br", "ceb", "da", "es", "fi", "fo", "fr", "ga", "gd", "gl", "gsw", "gv", "hr", "id", "is", "jv", "koi",
    "kpv", "krl", "lij", "lt", "mdf", "myv", "nb", "nl", "nn", "no", "olo", "pl", "pt", "ru", "sah", "sme", "sr", "sv",
    "tt", "uk", "wo",
})  # fmt: skip
# Languages in which a word ends at its apostrophe ("l' homme").
_ELISION = frozenset({"bm", "ca", "el", "fr", "gd", "it", "lij", "oc", "sq"})

_UNSPACED = r"[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Laoo}\p{Khmer}\p{Mymr}--[\p{P}\p{S}\p{Nd}\p{M}]]"
_BOUNDARY = r"(?:\b|(?=\s)|$)"
_PATTERN = r"""
    (?![\s\p{{Cc}}\p{{DI}}])                                      # a word does not begin with an invisible character
    (?:
      (?P<unspaced>(?:{unspaced}\p{{M}}*)+)
    | (?:https?://|www\.)[!-~--[<>"]]*[A-Za-z0-9/]               # web addresses
    | [A-Za-z0-9._%+-]{{1,64}}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+ # mail addresses
    | [@#]\p{{L}}\w*                                              # names and topics of social media
    | (?:\p{{L}}\.){{2,}}                                         # U.S., z.B.
    | [.!?…]{{2,}} | (?P<mark>[\p{{P}}\p{{S}}--\p{{So}}])(?P=mark)+ # ..., ?!, --
    | [\U0001F1E6-\U0001F1FF]{{2}}                                # flags
    {tailored}
    | \S+?{boundary}
    )
"""


class Word(NamedTuple):
    """A word of a text: ``text[start:end]``."""

    text: str
    start: int
    end: int


def segment(text: str, language: str | None = None) -> list[Word]:
    """Split a text into words and punctuation marks.

    Args:
        text: Any text. White space and invisible characters between words belong to no word.
        language: Code of the language, such as ``fr``; decides what apostrophes and hyphens do inside words. Without
            it, the rules of Unicode hold for both: ``l'homme`` is one word, ``well-known`` is three.

    Returns:
        The words in order, with their offsets into the text.
    """
    return list(iter_words(text, language))


def iter_words(text: str, language: str | None = None) -> Iterator[Word]:
    """Yield the words of a text one by one; see `segment`."""
    code = (language or "").replace("_", "-").partition("-")[0]
    for match in _pattern(compounds=code in _COMPOUNDS, elision=code in _ELISION).finditer(text):
        start = match.start()
        for word in _look_up(match[0]) if match["unspaced"] else (match[0],):
            yield Word(word, start, start + len(word))
            start += len(word)


@cache
def _pattern(*, compounds: bool, elision: bool) -> "regex.Pattern[str]":
    word = rf"\w\S*?{_BOUNDARY}"
    tailored = r"| \p{L}+['’]" if elision else ""
    tailored += rf"| {word}(?:[-‐‑]{word})*(?:[-‐‑](?!\S))?" if compounds else ""
    source = _PATTERN.format(unspaced=_UNSPACED, tailored=tailored, boundary=_BOUNDARY)
    # WORD makes `\b` the word boundary of UAX #29, and V1 allows differences of sets (`--`).
    return regex.compile(source, regex.VERBOSE | regex.WORD | regex.V1)


def _look_up(text: str) -> Iterator[str]:
    """Split a text without spaces by dictionary."""
    try:
        from icu4py.breakers import WordBreaker  # noqa: PLC0415 - only for some scripts
    except ImportError:
        what = f"{text[:20]!r} is in a script without spaces between words, which are found with the package icu4py."
        raise PolyloomError(f"{what} Install it with: pip install 'polyloom[icu]'") from None
    return iter(WordBreaker(text, "root"))
