"""Define the grammar of a language by a few settings: word order, marking, articles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from polyloom.data.synthetic.dice import Dice

Side = Literal["before", "after"]


@dataclass(frozen=True)
class Grammar:
    """The settings of a grammar."""

    order: Literal["SOV", "SVO", "VSO", "OVS", "VOS"]
    """Order of subject, verb and object."""
    adjective: Side
    """Side of its noun."""
    numeral: Side
    """Side of its noun."""
    owner: Side
    """Side of what is owned."""
    adposition: Side
    """Side of its noun; conjunctions of clauses stand on the same side."""
    case: Literal["suffix", "adposition", "order"]
    """Whether roles are marked by suffixes, by adpositions, or those of subject and object by order alone."""
    article: Literal["none", "before", "after"]
    """Side of its noun."""
    tense: Literal["suffix", "auxiliary"]
    auxiliary: Side
    """Side of the verb."""
    negation: Side
    """Side of the verb."""
    adverb: Side
    """Side of the verb."""
    question: Literal["none", "before", "after"]
    """Side of the sentence on which a particle of questions stands."""
    plural: Literal["suffix", "none"]
    """Whether nouns have a suffix for more than one."""
    agreement: Literal["suffix", "none"]
    """Whether verbs have a suffix for a subject of more than one."""
    pronouns: Literal["said", "dropped"]
    """Whether pronouns that are subjects are said or dropped."""
    capitals: Literal["none", "names", "nouns"]
    """Which words begin with a capital."""


# The grammars with which the four branches begin, one column each. They differ as much as possible, so that what a
# model learns of one branch is wrong in the next.
_FOUNDERS: Mapping[str, Sequence[Any]] = {
    "order": ("SOV", "SVO", "VSO", "OVS"),
    "adjective": ("before", "before", "after", "after"),
    "numeral": ("before", "before", "before", "after"),
    "owner": ("before", "after", "after", "before"),
    "adposition": ("after", "before", "before", "after"),
    "case": ("suffix", "order", "adposition", "order"),
    "article": ("none", "before", "before", "after"),
    "tense": ("suffix", "auxiliary", "suffix", "auxiliary"),
    "auxiliary": ("after", "before", "before", "after"),
    "negation": ("after", "before", "before", "after"),
    "adverb": ("before", "after", "after", "before"),
    "question": ("after", "before", "before", "none"),
    "plural": ("suffix", "suffix", "suffix", "suffix"),
    "agreement": ("suffix", "none", "suffix", "none"),
    "pronouns": ("dropped", "said", "said", "said"),
    "capitals": ("none", "names", "nouns", "names"),
}
FOUNDERS = tuple(Grammar(**{name: values[branch] for name, values in _FOUNDERS.items()}) for branch in range(4))


def mutated(grammar: Grammar, dice: Dice) -> Grammar:
    """Return the grammar with one setting drawn again."""
    name = dice.pick([field.name for field in fields(grammar)])
    return replace(grammar, **{name: dice.pick(get_args(get_type_hints(Grammar)[name]))})
