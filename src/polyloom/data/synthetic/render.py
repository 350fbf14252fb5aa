"""Render a meaning as a sentence of a language: words in order, with parts of speech, entities and a tree."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from polyloom.data.synthetic.evolution import SUFFIXES, WORDS, State
from polyloom.data.synthetic.meaning import Clause, Phrase
from polyloom.data.synthetic.sounds import spelled

_LINKS = ("flat", "compound")


class Sentence(NamedTuple):
    """Words with their annotations; heads are counted from 1, 0 for the root."""

    words: tuple[str, ...]
    upos: tuple[str, ...]
    entities: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of the sentence, without a space before the final punctuation."""
        return " ".join(self.words[:-1]) + self.words[-1]


@dataclass(slots=True, eq=False)
class _Node:
    """A word in its spoken form, with its dependents on either side."""

    word: str
    upos: str
    relation: str
    entity: str = ""
    before: list["_Node"] = field(default_factory=list)
    after: list["_Node"] = field(default_factory=list)
    place: int = 0

    def add(self, node: "_Node", side: str) -> None:
        """Add a dependent as the innermost on its side."""
        if side == "before":
            self.before.append(node)
        else:
            self.after.insert(0, node)

    def enclose(self, node: "_Node", side: str) -> None:
        """Add a dependent as the outermost on its side."""
        if side == "before":
            self.before.insert(0, node)
        else:
            self.after.append(node)

    def in_order(self) -> Iterator["_Node"]:
        """Return the words of the subtree in order."""
        for node in self.before:
            yield from node.in_order()
        yield self
        for node in self.after:
            yield from node.in_order()


class Speaker:
    """Generate sentences of a language from meanings.

    Attributes:
        state: The language.
        script: What it is written in.
    """

    def __init__(self, state: State, script: str) -> None:
        self.state, self.script = state, script
        self._words = dict(zip(WORDS, state.lexicon["word"], strict=True))
        self._suffixes = dict(zip(SUFFIXES, state.lexicon["suffix"], strict=True))

    def say(self, meaning: Clause) -> Sentence:
        """Generate the sentence for a meaning."""
        root = self._clause(meaning, "root")
        root.after.append(_Node("?" if meaning.question else ".", "PUNCT", "punct"))
        # Heads are positions, which are known only when all words are in order.
        nodes = list(root.in_order())
        heads = [0] * len(nodes)
        for place, node in enumerate(nodes, start=1):
            node.place = place
        for node in nodes:
            for child in (*node.before, *node.after):
                heads[child.place - 1] = node.place
        # Sounds become letters only here: sound changes and suffixes work on sounds, whatever the script.
        capitals = {"none": (), "names": ("PROPN",), "nouns": ("PROPN", "NOUN")}[self.state.grammar.capitals]
        words = [
            node.word if node.upos == "PUNCT" else spelled(node.word, self.script, capital=node.upos in capitals)
            for node in nodes
        ]
        return Sentence(
            tuple(words),
            tuple(node.upos for node in nodes),
            tuple(_entity(node, head) for node, head in zip(nodes, heads, strict=True)),
            tuple(heads),
            tuple(node.relation for node in nodes),
        )

    def _clause(self, clause: Clause, relation: str) -> _Node:
        grammar = self.state.grammar
        # The verb with its suffixes: tense first, then agreement.
        word = self.state.lexicon["verb"][clause.verb]
        if clause.tense != "present" and grammar.tense == "suffix":
            word += self._suffixes[clause.tense]
        if (clause.subject.plural or clause.subject.other) and grammar.agreement == "suffix":
            word += self._suffixes["agreement"]
        verb = _Node(word, "VERB", relation)

        # Subject and object (a noun phrase or a clause) in the order of the language.
        parts: dict[str, list[_Node]] = {"S": [], "O": []}
        if clause.subject.kind != "pronoun" or grammar.pronouns == "said":
            parts["S"] = [self._phrase(clause.subject, "nsubj", case=None)]
        if clause.object:
            parts["O"] = [self._phrase(clause.object, "obj", case="object")]
        if clause.content:
            parts["O"] = [self._clause(clause.content, "ccomp")]
        middle = grammar.order.index("V")
        verb.before = [node for letter in grammar.order[:middle] for node in parts[letter]]
        verb.after = [node for letter in grammar.order[middle + 1 :] for node in parts[letter]]
        if clause.oblique:
            node = self._phrase(clause.oblique[1], "obl", case=clause.oblique[0])
            if grammar.order.endswith("V"):  # where the verb comes last, all else comes before it
                verb.before.insert(len(parts["S"]), node)
            else:
                verb.after.append(node)

        # Words of the verb stand closer to it than its arguments, the last one added closest.
        if clause.adverb is not None:
            verb.add(_Node(self.state.lexicon["adverb"][clause.adverb], "ADV", "advmod"), grammar.adverb)
        if clause.tense != "present" and grammar.tense == "auxiliary":
            verb.add(_Node(self._words[clause.tense], "AUX", "aux"), grammar.auxiliary)
        if clause.negative:
            verb.add(_Node(self._words["not"], "PART", "advmod"), grammar.negation)
        if clause.question and grammar.question != "none":
            verb.enclose(_Node(self._words["whether"], "PART", "discourse"), grammar.question)
        if relation == "ccomp":
            verb.enclose(_Node(self._words["that"], "SCONJ", "mark"), grammar.adposition)
        return verb

    def _phrase(self, phrase: Phrase, relation: str, *, case: str | None) -> _Node:
        """Build a noun phrase; the words closest to the noun are added first."""
        grammar, lexicon = self.state.grammar, self.state.lexicon
        # The head with its suffixes: number, then case. Names have no plural.
        number = self._suffixes["plural"] if phrase.plural and grammar.plural == "suffix" else ""
        role = self._suffixes[case] if case and grammar.case == "suffix" else ""
        match phrase.kind:
            case "noun":
                head = _Node(lexicon["noun"][phrase.head] + number + role, "NOUN", relation)
            case "pronoun":
                head = _Node(lexicon["pronoun"][phrase.head] + role, "PRON", relation)
            case "place":
                head = _Node(lexicon["name"][phrase.head] + role, "PROPN", relation, "LOC")
            case "person":
                head = _Node(lexicon["name"][phrase.head] + role, "PROPN", relation, "PER")
            case "organization":
                head = _Node(lexicon["noun"][phrase.head] + role, "PROPN", relation, "ORG")
        # A second name belongs to the same entity: the family name of a person, or the name of an organization.
        if phrase.name is not None:
            link, side = ("flat", "after") if phrase.kind == "person" else ("compound", grammar.owner)
            head.add(_Node(lexicon["name"][phrase.name], "PROPN", link, head.entity), side)

        if phrase.adjective is not None:
            head.enclose(_Node(lexicon["adjective"][phrase.adjective], "ADJ", "amod"), grammar.adjective)
        if phrase.owner:
            head.enclose(self._phrase(phrase.owner, "nmod", case="of"), grammar.owner)
        if phrase.numeral is not None:
            head.enclose(_Node(lexicon["numeral"][phrase.numeral], "NUM", "nummod"), grammar.numeral)
        if phrase.definite and grammar.article != "none":
            head.enclose(_Node(self._words["the"], "DET", "det"), grammar.article)
        if phrase.other:
            other = self._phrase(phrase.other, "conj", case=case if grammar.case == "suffix" else None)
            other.enclose(_Node(self._words["and"], "CCONJ", "cc"), "before")
            head.after.append(other)
        if case and (grammar.case == "adposition" or (grammar.case == "order" and case != "object")):
            head.enclose(_Node(self._words[case], "ADP", "case"), grammar.adposition)
        return head


def _entity(node: _Node, head: int) -> str:
    """Tag entities in BIO; an entity is one word, or two of which one depends on the other."""
    if not node.entity:
        return "O"
    second = head < node.place if node.relation in _LINKS else any(child.relation in _LINKS for child in node.before)
    return f"{'I' if second else 'B'}-{node.entity}"
