r"""Read and write CoNLL-U, the format of Universal Dependencies, with checks and byte for byte.

Columns and comments are kept as they are, with the ``\r`` of files from Windows at the end of MISC and comments. A
byte order mark, extra blank lines and a missing one at the end are kept too, in `Sentence.before` and `Sentence.after`.
https://universaldependencies.org/format.html
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from polyloom.data.records import Tree
from polyloom.errors import DataError
from polyloom.io.files import LIMITS, read_lines

_RANGE = re.compile(r"([1-9][0-9]{0,9})-([1-9][0-9]{0,9})")
_NODE = re.compile(r"(0|[1-9][0-9]{0,9})\.([1-9][0-9]{0,9})")
_TEXT = re.compile(r"#\s*text\s*=(.*)", re.DOTALL)


class Row(NamedTuple):
    """One line of a sentence: a word, a range of words written together (``1-2``) or an empty node (``5.1``)."""

    id: str
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: str
    deprel: str
    deps: str
    misc: str

    @property
    def position(self) -> int | tuple[int, int]:
        """The number of a word, the first and last word of a range, or the word and number of an empty node."""
        first, _, second = self.id.replace(".", "-").partition("-")
        return (int(first), int(second)) if second else int(first)

    @property
    def is_word(self) -> bool:
        """Whether this is a syntactic word, which is tagged and parsed."""
        return self.id.isdecimal()


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence as it is in its file; tags, heads and relations are checked on access."""

    comments: tuple[str, ...]
    """Lines before the words, each with its ``#``."""
    rows: tuple[Row, ...]
    """Words, ranges and empty nodes in order."""
    path: Path = field(default=Path("sentence"), compare=False)
    """The file, for messages."""
    line: int = field(default=1, compare=False)
    """Number of its first line."""
    before: str = ""
    """Text before it in the file: empty except for the first sentence."""
    after: str = "\n\n"
    """Text after its last line: line end and blank line, except for the last sentence."""

    @property
    def words(self) -> tuple[str, ...]:
        """The forms of the words."""
        return tuple(row.form for row in self.rows if row.is_word)

    @property
    def upos(self) -> tuple[str, ...]:
        """The universal part of speech of each word."""
        return self._filled("upos")

    @property
    def relations(self) -> tuple[str, ...]:
        """The relation of each word."""
        return self._filled("deprel")

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of each word's head, 0 for the root."""
        heads = [row.head for row in self.rows if row.is_word]
        numbers = {str(number): number for number in range(len(heads) + 1)}
        for position, head in enumerate(heads, start=1):
            if head not in numbers:
                line = self._line_of(position)
                raise DataError(self.path, line, f"head {_short(head)} is not a number from 0 to {len(heads)}.")
        return tuple(numbers[head] for head in heads)

    @property
    def text(self) -> str:
        """The text of the comment ``# text = …``, or of the words."""
        for comment in self.comments:
            if (match := _TEXT.fullmatch(comment)) and (text := match[1].strip()):
                return text
        # Words that are written together count as their range is written; empty nodes are not in the text.
        parts, covered = [], 0
        for row in self.rows:
            position = row.position
            if "." in row.id or (isinstance(position, int) and position <= covered):
                continue
            covered = position if isinstance(position, int) else position[1]
            parts.append(row.form + ("" if "SpaceAfter=No" in row.misc.strip().split("|") else " "))
        return "".join(parts).strip()

    def tree(self) -> Tree:
        """Return words, heads and relations, after checking that they are a tree with one root."""
        heads = self.heads
        roots = [position for position, head in enumerate(heads, start=1) if head == 0]
        if len(roots) != 1:
            line = self._line_of(roots[1]) if roots else self.line
            raise DataError(self.path, line, f"{len(roots)} words have head 0. A tree has one root.")
        # Walk from each word towards the root, up to a word that an earlier walk has visited. A walk that comes back to
        # a word of its own is in a circle. Every word is visited once: long sentences take linear time.
        seen_from = [-1] + [0] * len(heads)  # the start of the walk that first visited a word; -1 of the root
        for start in range(1, len(heads) + 1):
            position = start
            while not seen_from[position]:
                seen_from[position] = start
                position = heads[position - 1]
            if seen_from[position] == start:
                raise DataError(self.path, self._line_of(position), f"word {position} is its own ancestor.")
        return Tree(self.words, heads, self.relations)

    def with_predictions(
        self,
        *,
        upos: Sequence[str] | None = None,
        heads: Sequence[int] | None = None,
        relations: Sequence[str] | None = None,
    ) -> "Sentence":
        """Return the sentence with other tags, heads or relations; all other columns stay, also DEPS."""
        columns = {"upos": upos, "head": heads, "deprel": relations}
        places = [index for index, row in enumerate(self.rows) if row.is_word]
        rows = list(self.rows)
        for name, values in columns.items():
            if values is None:
                continue
            if len(values) != len(places):
                raise DataError(self.path, self.line, f"{len(values)} values of {name} for {len(places)} words.")
            for index, value in zip(places, values, strict=True):
                rows[index] = rows[index]._replace(**{name: str(value)})
        return replace(self, rows=tuple(rows))

    def _line_of(self, position: int) -> int:
        index = next(index for index, row in enumerate(self.rows) if row.id == str(position))
        return self.line + len(self.comments) + index

    def _filled(self, name: str) -> tuple[str, ...]:
        values = tuple(getattr(row, name) for row in self.rows if row.is_word)
        if "_" in values:
            line = self._line_of(values.index("_") + 1)
            raise DataError(self.path, line, f"no {name.upper()} for this word: this treebank has none, or not yet.")
        return values


def read_conllu(path: Path) -> Iterator[Sentence]:
    """Read a treebank sentence by sentence; columns and ids are checked here, heads and tags on access."""
    return parse_conllu(read_lines(path, keep_ends=True), path)


def parse_conllu(numbered: Iterable[tuple[int, str]], path: Path) -> Iterator[Sentence]:
    """Parse lines, given with their numbers and ends, into sentences; the path is for messages."""
    lines: list[str] = []
    before: list[str] = []
    after: list[str] = []
    first, size = 1, 0
    for number, text in numbered:
        line = text
        if number == 1 and line.startswith("\ufeff"):
            before, line = ["\ufeff"], line[1:]
        if (size := size + len(line)) > LIMITS.line_bytes:
            raise DataError(path, number, f"a sentence of more than {LIMITS.line_bytes} characters.")
        if line in ("\n", "\r\n"):
            (after if lines else before).append(line)
            continue
        if len(after) > 1:  # the sentence has ended: `after` has its line end and blank lines
            yield _sentence(lines, path, first, before="".join(before), after="".join(after))
            lines, before, size = [], [], len(line)
        if not lines:
            first = number
        content = line.removesuffix("\n")
        lines.append(content)
        after = [line[len(content) :]]
    if lines:
        yield _sentence(lines, path, first, before="".join(before), after="".join(after))


def write_sentence(sentence: Sentence) -> str:
    """Return the lines of a sentence as they were in its file."""
    lines = (*sentence.comments, *map("\t".join, sentence.rows))
    return sentence.before + "\n".join(lines) + sentence.after


def _sentence(lines: list[str], path: Path, first: int, *, before: str, after: str) -> Sentence:
    """Parse the lines of a sentence."""
    count = 0  # of comments
    while count < len(lines) and lines[count].startswith("#"):
        count += 1
    if count == len(lines):
        raise DataError(path, first, "comments without words.")

    # Ids: words are counted from 1, a range stands before its first word, and empty nodes stand after their word.
    rows = []
    words, nodes = 0, 0  # numbers of the last word, and of the last empty node after it
    covered, covered_at = 0, first  # last word of the last range, and the line of that range
    for number, line in enumerate(lines[count:], start=first + count):
        cells = line.split("\t")
        if len(cells) != 10:
            raise DataError(path, number, _width_error(line, len(cells)))
        if "" in cells:
            raise DataError(path, number, f"column {cells.index('') + 1} is empty. Write '_' where there is no value.")
        name = cells[0]
        if name == str(words + 1):
            words, nodes = words + 1, 0
        elif match := _RANGE.fullmatch(name):
            start, stop = int(match[1]), int(match[2])
            if start != words + 1 or stop < start or start <= covered:
                raise DataError(path, number, f"range {name} is out of order behind word {words}.")
            covered, covered_at = stop, number
        elif (match := _NODE.fullmatch(name)) and (int(match[1]), int(match[2])) == (words, nodes + 1):
            nodes += 1
        else:
            raise DataError(path, number, f"id {_short(name)} is out of order behind word {words}.")
        rows.append(Row._make(cells))
    if not words:
        raise DataError(path, first + count, "a sentence without words.")
    if covered > words:
        raise DataError(path, covered_at, f"a range up to word {covered} in a sentence of {words} words.")
    return Sentence(tuple(lines[:count]), tuple(rows), path, first, before, after)


def _width_error(line: str, count: int) -> str:
    hint = " Columns are separated by tabs."
    if line.startswith("#"):
        hint = " Comments stand before the words."
    elif not line.strip():
        hint = " The line between sentences has no blanks."
    return f"{count} column{'s' if count != 1 else ''}, not 10.{hint}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 20 else text[:19] + "…")
