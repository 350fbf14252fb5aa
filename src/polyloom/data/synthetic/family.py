"""A family of languages: who descends from whom, and since when they go separate ways.

A language lives in steps (``evolution.py``), and branches off another at one of that one's steps. So a larger family
holds the smaller one, its languages unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from polyloom.data.synthetic.dice import Dice
from polyloom.data.synthetic.evolution import State, founded, proto, stepped
from polyloom.data.synthetic.meaning import Clause, meaning_of
from polyloom.data.synthetic.render import Sentence, Speaker
from polyloom.errors import DataError, suggest

_BRANCHES = (0, 1, 2, 3, 0, 1, 0, 2, 0, 1, 2, 0)  # of language 0, 1, …: of the first twelve, the fourth is alone
_STEMS = (3, 4, 5, 5)  # steps until a branch falls into languages
_SCRIPTS = ("latin", "cyrillic", "latin", "latin")
_INITIALS = "bknt"
_SHORTEST, _SPREAD = 9, 4  # steps from the proto-language to today
_MOST = 100  # names of four letters would run out
_TREE, _NAME, _LIFE = 1, 2, 3  # what dice are for; 0 is the proto-language, 4 are meanings


class Lineage(NamedTuple):
    """The history of a language.

    Attributes:
        name: Four letters; the first is that of its branch.
        branch: Number of the branch.
        mother: Number of the language that it branched off; ``None`` for the founder of a branch.
        since: The step at which it did.
        until: The step at which it is spoken now.
    """

    name: str
    branch: int
    mother: int | None
    since: int
    until: int


@dataclass(frozen=True)
class Family:
    """Languages with a common ancestor.

    Attributes:
        seed: Another seed is another family.
        languages: How many.
    """

    seed: int = 0
    languages: int = 12

    def __post_init__(self) -> None:
        if not 1 <= self.languages <= _MOST:
            raise DataError("synthetic", None, f"a family has 1 to {_MOST} languages, not {self.languages}.")

    @cached_property
    def lineages(self) -> tuple[Lineage, ...]:
        """Histories of all languages; a parent comes before its children."""
        lives: list[Lineage] = []
        for number in range(self.languages):
            branch = _BRANCHES[number % len(_BRANCHES)]
            dice = Dice(self.seed, _TREE, number)
            kin = [other for other, life in enumerate(lives) if life.branch == branch]
            mother, since = None, 0
            if kin:
                mother = dice.pick(kin)
                first = max(_STEMS[branch], lives[mother].since + 1)
                since = first + dice.below(lives[mother].until - 1 - first)
            until = max(since + 3, _SHORTEST + dice.below(_SPREAD))
            lives.append(Lineage(self._new_name(number, branch, lives), branch, mother, since, until))
        return tuple(lives)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The languages, in an order that stays the same in larger families."""
        return tuple(life.name for life in self.lineages)

    def groups(self) -> Mapping[str, str]:
        """Return the branch of every language, named after its first language."""
        founders = {life.branch: life.name for life in self.lineages if life.mother is None}
        return {life.name: founders[life.branch] for life in self.lineages}

    def distance(self, one: str, other: str) -> int:
        """Return the number of steps between two languages through their last common ancestor."""
        a, b = self._number(one), self._number(other)
        shared = dict(self._line(a))
        parted = max((min(step, shared[number]) for number, step in self._line(b) if number in shared), default=0)
        return self.lineages[a].until + self.lineages[b].until - 2 * parted

    def tree(self) -> str:
        """Return the family tree in Newick notation, with lengths in steps."""
        founders = [number for number, life in enumerate(self.lineages) if life.mother is None]
        return "(" + ",".join(self._newick(number) for number in founders) + ");"

    def state(self, language: str) -> State:
        """Return the present state of a language: words, grammar, sound changes."""
        number = self._number(language)
        return _state(self, number, self.lineages[number].until)

    def speaker(self, language: str) -> Speaker:
        """Return a generator of sentences in a language."""
        return Speaker(self.state(language), _SCRIPTS[self.lineages[self._number(language)].branch])

    def meaning(self, split: str, index: int) -> Clause:
        """Return the meaning of sentence ``index`` of a split, the same in all languages."""
        return meaning_of(self.seed, split, index)

    def sentence(self, language: str, split: str, index: int) -> Sentence:
        """Generate sentence ``index`` of a split."""
        return self.speaker(language).say(self.meaning(split, index))

    def _number(self, language: str) -> int:
        if language not in self.names:
            raise DataError(
                f"synthetic:{language}", None, f"no such language. {suggest(language, self.names, limit=40)}"
            )
        return self.names.index(language)

    def _line(self, number: int) -> list[tuple[int, int]]:
        """Return a language and its ancestors, each with the last step before the languages separate."""
        line, until, at = [], self.lineages[number].until, number
        while True:
            line.append((at, until))
            life = self.lineages[at]
            if life.mother is None:
                return line
            at, until = life.mother, life.since

    def _newick(self, number: int) -> str:
        life = self.lineages[number]
        text, at = life.name, life.until
        daughters = [other for other, one in enumerate(self.lineages) if one.mother == number]
        for daughter in sorted(daughters, key=lambda other: -self.lineages[other].since):
            since = self.lineages[daughter].since
            text, at = f"({text}:{at - since},{self._newick(daughter)})", since
        return f"{text}:{at - life.since}"

    def _new_name(self, number: int, branch: int, lives: list[Lineage]) -> str:
        dice = Dice(self.seed, _NAME, number)
        taken = {life.name for life in lives}
        while True:
            name = _INITIALS[branch] + dice.pick("aeiou") + dice.pick("dfglmnprstvz") + dice.pick("aeiou")
            if name not in taken:
                return name


@cache
def _state(family: Family, number: int, step: int) -> State:
    life = family.lineages[number]
    if life.mother is not None and step <= life.since:
        return _state(family, life.mother, step)
    dice = Dice(family.seed, _LIFE, number, step)
    if step == 0:
        return founded(proto(family.seed), life.branch, dice)
    return stepped(_state(family, number, step - 1), dice)
