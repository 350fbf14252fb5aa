"""Evolve a language by one step: a sound change, a few replaced words, a few shifts of meaning."""

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from polyloom.data.synthetic.dice import Dice
from polyloom.data.synthetic.grammar import FOUNDERS, Grammar, mutated
from polyloom.data.synthetic.meaning import CONTENT, PRONOUNS, RELATIONS
from polyloom.data.synthetic.sounds import CHANGES, changed, coined

Lexicon = Mapping[str, tuple[str, ...]]  # by class: the word of each concept
WORDS = ("the", "and", "that", "not", "whether", "past", "future", "object", "of", *RELATIONS)
SUFFIXES = ("plural", "agreement", "past", "future", "object", "of", *RELATIONS)
_SIZES: Mapping[str, int] = {**CONTENT, "pronoun": PRONOUNS, "word": len(WORDS), "suffix": len(SUFFIXES)}
# Classes whose words are replaced or shift their meaning in a step.
_SHIFTING = ("noun", "verb", "adjective", "adverb")
_FOUNDING_SHIFTS, _REPLACED = 25, 3
_MUTATION = 12  # percent


class State(NamedTuple):
    """A language at one point in time."""

    lexicon: Lexicon
    """Its words, as they sound."""
    grammar: Grammar
    changes: tuple[int, ...]
    """Numbers of the sound changes that it has been through, in their order."""


def proto(seed: int) -> State:
    """Return the common ancestor of all languages."""
    words = {kind: [""] * size for kind, size in _SIZES.items()}
    _fill(words, Dice(seed, 0))
    return _state(words, FOUNDERS[0], ())


def founded(state: State, branch: int, dice: Dice) -> State:
    """Begin a branch, with a new grammar and many words and suffixes of another function."""
    words = {kind: list(forms) for kind, forms in state.lexicon.items()}
    for kind in ("word", "suffix"):  # function words and suffixes are rotated: the same form, another function
        at = 3 * branch % len(words[kind])
        words[kind] = words[kind][at:] + words[kind][:at]
    _shift(words, dice, times=_FOUNDING_SHIFTS)
    return _state(words, FOUNDERS[branch], state.changes)


def stepped(state: State, dice: Dice) -> State:
    """Return the language one step later."""
    # One sound change, if possible a new one, in all words: what makes cognates regular.
    fresh = [number for number in range(len(CHANGES)) if number not in state.changes]
    change = dice.pick(fresh or range(len(CHANGES)))
    words = {kind: [changed(word, change) for word in forms] for kind, forms in state.lexicon.items()}
    # One shift of meaning, and a few words that are lost and coined anew.
    _shift(words, dice, times=1)
    for _ in range(_REPLACED):
        kind = dice.pick(_SHIFTING)
        words[kind][dice.below(len(words[kind]))] = ""
    _fill(words, dice)
    grammar = mutated(state.grammar, dice) if dice.chance(_MUTATION) else state.grammar
    return _state(words, grammar, (*state.changes, change))


def _fill(words: dict[str, list[str]], dice: Dice) -> None:
    """Make new words for lost ones, and for the second of two that have become homophones."""
    shapes = {"pronoun": "word", "word": "word", "suffix": "suffix"}
    free = [kind for kind in words if kind != "suffix"]  # a suffix may sound like a word
    for kinds in (free, ["suffix"]):
        taken = set(chain.from_iterable(words[kind] for kind in kinds))
        seen: set[str] = set()
        for kind in kinds:
            for place, word in enumerate(words[kind]):
                if not word or word in seen:
                    words[kind][place] = coined(shapes.get(kind, "root"), dice, taken)
                    taken.add(words[kind][place])
                seen.add(words[kind][place])


def _shift(words: dict[str, list[str]], dice: Dice, *, times: int) -> None:
    """Swap words of two classes, for example nouns and verbs."""
    for _ in range(times):
        first = dice.pick(_SHIFTING)
        second = dice.pick([kind for kind in _SHIFTING if kind != first])
        a, b = dice.below(len(words[first])), dice.below(len(words[second]))
        words[first][a], words[second][b] = words[second][b], words[first][a]


def _state(words: Mapping[str, list[str]], grammar: Grammar, changes: tuple[int, ...]) -> State:
    return State({kind: tuple(forms) for kind, forms in words.items()}, grammar, changes)
