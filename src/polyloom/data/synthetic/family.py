"""A family of languages: which one descends from which, and since when they are separate.

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

# The branch of language 0, 1, …, and again from the first. Among twelve, the fourth is alone in its branch.
_BRANCHES = (0, 1, 2, 3, 0, 1, 0, 2, 0, 1, 2, 0)
_STEMS = (3, 4, 5, 5)  # steps until a branch splits into languages
_SCRIPTS = ("latin", "cyrillic", "latin", "latin")
_INITIALS = "bknt"
_SHORTEST, _SPREAD = 9, 4  # steps from the proto-language to today
_MOST = 100  # names of four letters would run out
_TREE, _NAME, _LIFE = 1, 2, 3  # keys of dice, by what they decide; 0 is the proto-language, 4 are meanings


class Lineage(NamedTuple):
    """The history of a language."""

    name: str
    """Four letters; the first is that of its branch."""
    branch: int
    """Number of the branch."""
    parent: int | None
    """Number of the language that it branched off; ``None`` for the founder of a branch."""
    since: int
    """The step at which it did."""
    until: int
    """The step at which it is spoken now."""


@dataclass(frozen=True)
class Family:
    """Languages with a common ancestor."""

    seed: int = 0
    """Another seed is another family."""
    languages: int = 12
    """How many."""

    def __post_init__(self) -> None:
        if not 1 <= self.languages <= _MOST:
            raise DataError("synthetic", None, f"a family has 1 to {_MOST} languages, not {self.languages}.")

    @cached_property
    def lineages(self) -> tuple[Lineage, ...]:
        """Histories of all languages; a parent comes before its children."""
        lineages: list[Lineage] = []
        for number in range(self.languages):
            branch = _BRANCHES[number % len(_BRANCHES)]
            dice = Dice(self.seed, _TREE, number)
            kin = [other for other, lineage in enumerate(lineages) if lineage.branch == branch]
            parent, since = None, 0
            if kin:
                # It branches off after the stem of the branch, and while its parent is still spoken.
                parent = dice.pick(kin)
                first = max(_STEMS[branch], lineages[parent].since + 1)
                since = first + dice.below(lineages[parent].until - 1 - first)
            until = max(since + 3, _SHORTEST + dice.below(_SPREAD))

            # Names have separate dice, so that a name that must be drawn again does not change the tree.
            names = Dice(self.seed, _NAME, number)
            taken = {"", *(lineage.name for lineage in lineages)}
            name = ""
            while name in taken:
                name = _INITIALS[branch] + names.pick("aeiou") + names.pick("dfglmnprstvz") + names.pick("aeiou")
            lineages.append(Lineage(name, branch, parent, since, until))
        return tuple(lineages)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The languages, in an order that stays the same in larger families."""
        return tuple(lineage.name for lineage in self.lineages)

    def groups(self) -> Mapping[str, str]:
        """Return the branch of every language, named after its first language."""
        founders = {lineage.branch: lineage.name for lineage in self.lineages if lineage.parent is None}
        return {lineage.name: founders[lineage.branch] for lineage in self.lineages}

    def distance(self, one: str, other: str) -> int:
        """Return the number of steps between two languages through their last common ancestor."""
        first, second = self._number(one), self._number(other)
        ancestors = self._ancestors(first)
        # Two languages share the history of a common ancestor until the first of them leaves it. Without one, they
        # share the proto-language, which is at step 0.
        separation = 0
        for number, step in self._ancestors(second).items():
            if number in ancestors:
                separation = max(separation, min(step, ancestors[number]))
        return self.lineages[first].until + self.lineages[second].until - 2 * separation

    def tree(self) -> str:
        """Return the family tree in Newick notation, with lengths in steps."""
        founders = [number for number, lineage in enumerate(self.lineages) if lineage.parent is None]
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

    def _ancestors(self, number: int) -> dict[int, int]:
        """Return a language and its ancestors, each with the step until which their history is that of the language."""
        ancestors = {number: self.lineages[number].until}
        while (parent := self.lineages[number].parent) is not None:
            ancestors[parent] = self.lineages[number].since
            number = parent
        return ancestors

    def _newick(self, number: int) -> str:
        """Write the subtree of a language: its children branch off one by one, the last one first in the notation."""
        lineage = self.lineages[number]
        text, at = lineage.name, lineage.until
        children = [other for other, child in enumerate(self.lineages) if child.parent == number]
        for child in sorted(children, key=lambda other: -self.lineages[other].since):
            since = self.lineages[child].since
            text, at = f"({text}:{at - since},{self._newick(child)})", since
        return f"{text}:{at - lineage.since}"


@cache
def _state(family: Family, number: int, step: int) -> State:
    """Return a language at a step, which is its parent until it branches off."""
    lineage = family.lineages[number]
    if lineage.parent is not None and step <= lineage.since:
        return _state(family, lineage.parent, step)
    # Every step has its own dice, so a language does not depend on how many others there are.
    dice = Dice(family.seed, _LIFE, number, step)
    if step == 0:
        return founded(proto(family.seed), lineage.branch, dice)
    return stepped(_state(family, number, step - 1), dice)
