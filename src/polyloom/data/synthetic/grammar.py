"""Define the grammar of a language by a few settings: word order, marking, articles."""

from dataclasses import dataclass, fields, replace
from typing import Literal, get_args, get_type_hints

from polyloom.data.synthetic.dice import Dice


@dataclass(frozen=True)
class Grammar:
    """The settings of a grammar.

    Attributes:
        order: Of subject, verb and object.
        adjective: Before or after its noun.
        numeral: Before or after its noun.
        owner: Before or after what is owned.
        adposition: Before or after its noun; conjunctions of clauses stand on the same side.
        case: Whether roles are marked by suffixes, by adpositions, or those of subject and object by order alone.
        article: Before the noun, after it, or none.
        tense: By suffixes or by auxiliaries.
        auxiliary: Before or after the verb.
        negation: Before or after the verb.
        adverb: Before or after the verb.
        question: A particle at the beginning, at the end, or none.
        plural: Whether nouns have a suffix for more than one.
        agreement: Whether verbs have a suffix for a subject of more than one.
        pronouns: Whether pronouns that are subjects are said or dropped.
        capitals: Which words begin with a capital.
    """

    order: Literal["SOV", "SVO", "VSO", "OVS", "VOS"]
    adjective: Literal["before", "after"]
    numeral: Literal["before", "after"]
    owner: Literal["before", "after"]
    adposition: Literal["before", "after"]
    case: Literal["suffix", "adposition", "order"]
    article: Literal["none", "before", "after"]
    tense: Literal["suffix", "auxiliary"]
    auxiliary: Literal["before", "after"]
    negation: Literal["before", "after"]
    adverb: Literal["before", "after"]
    question: Literal["none", "before", "after"]
    plural: Literal["suffix", "none"]
    agreement: Literal["suffix", "none"]
    pronouns: Literal["said", "dropped"]
    capitals: Literal["none", "names", "nouns"]


# How the branches begin: unlike one another, so that what is right in one is wrong in the next.
FOUNDERS = (
    Grammar(
        "SOV", "before", "before", "before", "after", "suffix", "none", "suffix", "after", "after", "before",
        "after", "suffix", "suffix", "dropped", "none",
    ),
    Grammar(
        "SVO", "before", "before", "after", "before", "order", "before", "auxiliary", "before", "before", "after",
        "before", "suffix", "none", "said", "names",
    ),
    Grammar(
        "VSO", "after", "before", "after", "before", "adposition", "before", "suffix", "before", "before", "after",
        "before", "suffix", "suffix", "said", "nouns",
    ),
    Grammar(
        "OVS", "after", "after", "before", "after", "order", "after", "auxiliary", "after", "after", "before",
        "none", "suffix", "none", "said", "names",
    ),
)  # fmt: skip


def mutated(grammar: Grammar, dice: Dice) -> Grammar:
    """Return the grammar with one setting drawn again."""
    name = dice.pick([field.name for field in fields(grammar)])
    return replace(grammar, **{name: dice.pick(get_args(get_type_hints(Grammar)[name]))})
