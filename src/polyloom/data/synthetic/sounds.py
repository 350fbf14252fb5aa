"""Make words, apply sound changes, and write words in letters.

Sounds are single letters: ``c`` as in *church*, ``x`` as in *shoe*. A change befalls a sound wherever it stands in its
surroundings, in every word of a language: that is what makes cognates regular.
"""

import re
from collections.abc import Collection, Mapping
from itertools import zip_longest

from polyloom.data.synthetic.dice import Dice

_CONSONANTS, _VOWELS = "ptkbdgmnslrwyh", "aeiou"
# What words of each kind look like: c stands for a consonant, v for a vowel.
_SHAPES = {"root": ("cvcv", "cvcvc", "cvccv", "cvcvcv"), "word": ("cv", "cvc", "vc"), "suffix": ("cv", "vc", "vcv")}

# What changes where (a pattern, with V for any vowel and C for any consonant), and into what; nothing is a loss.
_CHANGES = (
    ("(?<=V)[ptk](?=V)", "ptk", "bdg"),
    ("(?<=V)[bdg](?=V)", "bdg", "vzh"),
    ("[bdg]", "bdg", "ptk"),
    ("^[pk](?=V)", "pk", "fh"),
    ("[bdgvz]$", "bdgvz", "ptkfs"),
    ("k(?=[ie])", "k", "c"),
    ("g(?=[ie])", "g", "y"),
    ("s(?=[iu])", "s", "x"),
    ("t(?=i)", "t", "c"),
    ("d(?=u)", "d", "z"),
    ("^s(?=V)", "s", "h"),
    ("^h", "h", ""),
    ("(?<=V)h(?=V)", "h", "y"),
    ("w", "w", "v"),
    ("^y", "y", "z"),
    ("f", "f", "v"),
    ("(?<=V)l(?=V)", "l", "r"),
    ("(?<=C)r", "r", "l"),
    ("^l", "l", "n"),
    ("m$", "m", "n"),
    ("n(?=[pb])", "n", "m"),
    ("(?<=VCV)[nsh]$", "nsh", ""),
    ("(?<=VC)[ieu]$", "ieu", ""),
    ("(?<=VC)[ao]$", "ao", "ee"),
    ("(?<=C)[wyh](?=V)", "wyh", ""),
    ("e(?=C+V)", "e", "i"),
    ("o(?=C+V)", "o", "u"),
    ("a(?=C+i)", "a", "e"),
    ("a(?=C+u)", "a", "o"),
    ("u(?=C+i)", "u", "i"),
    ("i(?=C+[ao])", "i", "e"),
    ("o$", "o", "a"),
)
CHANGES: tuple[tuple[re.Pattern[str], Mapping[str, str]], ...] = tuple(
    (
        re.compile(where.replace("V", f"[{_VOWELS}]").replace("C", f"[^{_VOWELS}]")),
        dict(zip_longest(old, new, fillvalue="")),
    )
    for where, old, new in _CHANGES
)

SCRIPTS: Mapping[str, Mapping[int, str]] = {
    "latin": {ord("c"): "ch", ord("x"): "sh"},
    "cyrillic": dict(zip(map(ord, "ptkbdgmnslrwyhfvzcxaeiou"), "пткбдгмнслрўйхфвзчшаеиоу", strict=True)),
}


def coined(kind: str, dice: Dice, taken: Collection[str]) -> str:
    """Make a pronounceable word that differs from all existing words."""
    while True:
        word = "".join(dice.pick(_CONSONANTS if place == "c" else _VOWELS) for place in dice.pick(_SHAPES[kind]))
        if word not in taken:
            return word


def changed(word: str, change: int) -> str:
    """Apply a sound change; a word that would lose its last vowel stays as it is."""
    where, table = CHANGES[change]
    new = where.sub(lambda match: table[match[0]], word)
    return new if any(vowel in new for vowel in _VOWELS) else word


def spelled(word: str, script: str, *, capital: bool) -> str:
    """Write a word in letters."""
    text = word.translate(SCRIPTS[script])
    return text.capitalize() if capital else text
