"""Draw the meaning of a sentence, independent of a language: a clause of concepts, from (seed, split, index) alone.

Concepts are numbers within a class: ``verb`` 3 is the same in all languages, whatever its word.
"""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Literal, NamedTuple

from polyloom.data.synthetic.dice import Dice

Tense = Literal["present", "past", "future"]
Relation = Literal["in", "from", "to", "with"]
PhraseKind = Literal["noun", "person", "place", "organization", "pronoun"]
Concept = tuple[str, int]

# How many concepts each class has.
CONTENT: Mapping[str, int] = {"noun": 80, "verb": 40, "adjective": 24, "adverb": 10, "numeral": 4, "name": 160}
ORGANIZATIONS = 4  # the first nouns are also what organizations are called by: school, bank
INTRANSITIVE, TRANSITIVE, SPEECH = range(12), range(12, 34), range(34, 40)  # verbs
PERSONS, PLACES = range(110), range(70, 160)  # names; names of both kinds are distinguished by context alone
PRONOUNS = 6  # I, you, it, we, you all, they
TENSES: tuple[Tense, ...] = ("present", "past", "future")
RELATIONS: tuple[Relation, ...] = ("in", "from", "to", "with")
SPLITS: Mapping[str, range] = {"test": range(1), "dev": range(1, 2), "train": range(2, 10)}  # tenths of all meanings

_MEANING = 4  # what dice are for: see family.py


class Phrase(NamedTuple):
    """A participant of a clause."""

    kind: PhraseKind
    """Decides what ``head`` counts: nouns, names or pronouns."""
    head: int
    """A concept of that class; of an organization, its noun."""
    name: int | None = None
    """The family name of a person, or the name of an organization."""
    plural: bool = False
    definite: bool = False
    """Known to the hearer."""
    adjective: int | None = None
    numeral: int | None = None
    owner: "Phrase | None" = None
    other: "Phrase | None" = None
    """A second participant, joined by *and*."""


class Clause(NamedTuple):
    """A clause: who did what, where, when; ``content`` is the clause that a verb of speech introduces."""

    verb: int
    subject: Phrase
    object: Phrase | None
    content: "Clause | None"
    oblique: tuple[Relation, Phrase] | None
    adverb: int | None
    tense: Tense
    negative: bool
    question: bool


def meaning_of(seed: int, split: str, index: int) -> Clause:
    """Return the meaning of a sentence; no two splits share one."""
    # Draw until the meaning belongs to the split: the test and dev splits have a tenth of all meanings each. The tenth
    # depends on the concepts alone. Otherwise a language without tenses or numbers would have the same sentence in two
    # splits.
    for attempt in count():
        clause = _clause(Dice(seed, _MEANING, list(SPLITS).index(split), index, attempt))
        tenth = hashlib.sha256(repr(sorted(concepts_of(clause))).encode()).digest()[0] % 10
        if tenth in SPLITS[split]:
            return clause
    raise AssertionError


def concepts_of(clause: Clause) -> Iterator[Concept]:
    """Return the concepts that every language has a word for; pronouns, tense or number may be unmarked."""
    yield "verb", clause.verb
    if clause.adverb is not None:
        yield "adverb", clause.adverb
    if clause.content:
        yield from concepts_of(clause.content)
    for phrase in (clause.subject, clause.object, clause.oblique and clause.oblique[1]):
        if phrase:
            yield from _phrase_concepts(phrase)


def _phrase_concepts(phrase: Phrase) -> Iterator[Concept]:
    if phrase.kind != "pronoun":
        yield "noun" if phrase.kind in ("noun", "organization") else "name", phrase.head
    for kind, concept in (("name", phrase.name), ("adjective", phrase.adjective), ("numeral", phrase.numeral)):
        if concept is not None:
            yield kind, concept
    for more in (phrase.owner, phrase.other):
        if more:
            yield from _phrase_concepts(more)


def _clause(dice: Dice, *, inner: bool = False) -> Clause:
    # Percentages decide how often a structure occurs. The order of the draws matters: with another order, or one draw
    # more, all corpora would differ.
    content = _clause(dice, inner=True) if not inner and dice.chance(12) else None
    transitive = content is None and dice.chance(60)
    verbs = SPEECH if content else TRANSITIVE if transitive else INTRANSITIVE
    subject = _phrase(dice, _who(dice, pronouns=transitive), may_join=True)
    return Clause(
        verbs[_often_small(dice, len(verbs))],
        subject,
        _phrase(dice, _who(dice, pronouns=subject.kind != "pronoun")) if transitive else None,
        content,
        _oblique(dice) if not content and dice.chance(30 if transitive else 70) else None,
        dice.below(CONTENT["adverb"]) if dice.chance(25) else None,
        dice.pick(TENSES),
        dice.chance(12),
        not inner and dice.chance(12),
    )


def _who(dice: Dice, *, pronouns: bool) -> PhraseKind:
    chosen: PhraseKind = dice.pick(("noun", "noun", "noun", "person", "organization", "pronoun"))
    return "noun" if chosen == "pronoun" and not pronouns else chosen


def _oblique(dice: Dice) -> tuple[Relation, Phrase]:
    relation = dice.pick(RELATIONS)
    named: PhraseKind = "person" if relation == "with" else "place"
    return relation, _phrase(dice, named if dice.chance(50) else "noun")


def _phrase(dice: Dice, kind: PhraseKind, *, inner: bool = False, may_join: bool = False) -> Phrase:
    if kind == "pronoun":
        head = dice.below(PRONOUNS)
        return Phrase(kind, head, plural=head >= PRONOUNS // 2)
    join = may_join and dice.chance(8)
    if kind != "noun":
        name = dice.pick(PERSONS) if kind == "organization" or (kind == "person" and dice.chance(40)) else None
        heads = {"person": PERSONS, "place": PLACES, "organization": range(ORGANIZATIONS)}[kind]
        return Phrase(kind, dice.pick(heads), name, other=_phrase(dice, "person") if join else None)
    numeral = dice.below(CONTENT["numeral"]) if not inner and dice.chance(10) else None
    owners: tuple[PhraseKind, ...] = ("noun", "person", "place")
    return Phrase(
        kind,
        _often_small(dice, CONTENT["noun"]),
        plural=dice.chance(30) or numeral is not None,
        definite=dice.chance(50),
        adjective=_often_small(dice, CONTENT["adjective"]) if dice.chance(30) else None,
        numeral=numeral,
        owner=_phrase(dice, dice.pick(owners), inner=True) if not inner and dice.chance(18) else None,
        other=_phrase(dice, "noun", inner=True) if join else None,
    )


def _often_small(dice: Dice, size: int) -> int:
    """Draw a concept; the first ones of a class are more frequent, as in natural language."""
    return dice.below(size) * dice.below(size) // size
