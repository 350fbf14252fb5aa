"""Generate the corpora ``synthetic:LANGUAGE/SPLIT`` and ``synthetic:ONE-OTHER/SPLIT``."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from polyloom.data.records import Bitext, Kind, Record, Tagged, Text, Tree
from polyloom.data.synthetic.family import Family
from polyloom.data.synthetic.meaning import Clause
from polyloom.data.synthetic.render import Sentence
from polyloom.errors import DataError, suggest

SIZES: Mapping[str, int] = {"train": 2000, "dev": 200, "test": 200}
FAMILY = Family(languages=48)  # of which the first twelve are the usual ones
LICENCE = "CC0-1.0"


@dataclass(frozen=True)
class SyntheticCorpus:
    """One split, in one language or in two."""

    name: str
    """The name as it is written in a recipe."""
    sides: tuple[str, ...]
    """The language, or source and target."""
    split: str
    entities: bool = False
    """Whether tags are entities instead of parts of speech."""

    @classmethod
    def parse(cls, name: str) -> "SyntheticCorpus":
        """Parse ``synthetic:LANGUAGE/SPLIT``, with ``#ner`` for entities, or ``synthetic:ONE-OTHER/SPLIT``."""
        rest, sign, tags = name.removeprefix("synthetic:").partition("#")
        item, _, split = rest.partition("/")
        sides = tuple(item.split("-"))
        if split not in SIZES:
            raise DataError(name, None, f"which split? {suggest(split, SIZES)} Write synthetic:LANGUAGE/SPLIT.")
        if unknown := [side for side in sides if side not in FAMILY.names]:
            raise DataError(name, None, f"no language {unknown[0]!r}. {suggest(unknown[0], FAMILY.names)}")
        if len(sides) != len(set(sides)) or len(sides) > 2:
            raise DataError(name, None, "one language is needed, or two for translations.")
        if sign and (tags != "ner" or len(sides) == 2):
            raise DataError(name, None, "only #ner can follow, for the entities of one language.")
        return cls(name, sides, split, bool(sign))

    @property
    def task(self) -> str:
        """The task that it is mostly used for."""
        return "mt" if self.languages else "ner" if self.entities else "pos"

    @property
    def language(self) -> str | None:
        """The language; ``None`` for translations."""
        return None if self.languages else self.sides[0]

    @property
    def languages(self) -> tuple[str, str] | None:
        """The languages of translations; ``None`` for a corpus in one language."""
        return (self.sides[0], self.sides[1]) if len(self.sides) == 2 else None

    def records(self, kind: Kind) -> Iterator[Record]:
        """Generate the sentences of the split."""
        known = ("bitext",) if self.languages else ("tags", "tree", "text")
        if kind not in known:
            raise DataError(self.name, None, f"no records of kind {kind!r}. Known: {', '.join(known)}.")
        sentences = [_sentences(side, self.split) for side in self.sides]
        if kind == "bitext":
            return (Bitext(source.text, target.text) for source, target in zip(*sentences, strict=True))
        if kind == "tree":
            return (Tree(sentence.words, sentence.heads, sentence.relations) for sentence in sentences[0])
        if kind == "text":
            return (Text(sentence.text) for sentence in sentences[0])
        return (
            Tagged(sentence.words, sentence.entities if self.entities else sentence.upos) for sentence in sentences[0]
        )

    def sha256(self) -> str:
        """Hash of the generated sentences, not of the settings, so that it is never out of date."""
        # Sorted: both directions of a pair have the same hash.
        hashes = sorted(_sha256(side, self.split) for side in self.sides)
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


@cache
def _meanings(split: str) -> tuple[Clause, ...]:
    """Cache meanings: all languages say the same."""
    return tuple(FAMILY.meaning(split, index) for index in range(SIZES[split]))


@cache
def _sentences(language: str, split: str) -> tuple[Sentence, ...]:
    """Cache sentences: a run reads a corpus for its hash, for each task and for its vocabulary."""
    return tuple(map(FAMILY.speaker(language).say, _meanings(split)))


@cache
def _sha256(language: str, split: str) -> str:
    digest = hashlib.sha256()
    for sentence in _sentences(language, split):
        digest.update(repr(tuple(sentence)).encode())
    return digest.hexdigest()
