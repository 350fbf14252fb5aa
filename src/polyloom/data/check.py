"""Check corpora before training: count what is in them, and find leaks, missing labels and other issues.

Of a text only a hash and lengths are kept: 16 bytes per sentence, 48 per pair of a sentence and its translation.
"""

import json
import unicodedata
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from polyloom.data.catalog import KINDS, Corpus
from polyloom.data.issues import Issue, Severity, find_issues, overlap_issues, unread_test
from polyloom.data.readers.formats import header_of, reader_of
from polyloom.data.records import (
    Bitext,
    Choices,
    Conversation,
    Kind,
    LabelledText,
    Pair,
    Question,
    Record,
    Tagged,
    Text,
    Tree,
)
from polyloom.errors import DataError, PolyloomError, suggest
from polyloom.io.atomic import new_file
from polyloom.io.files import File
from polyloom.io.locks import locked
from polyloom.registry import code_hashes

if TYPE_CHECKING:
    from polyloom.data.tokenization.tokenizer import Tokenizer  # imports transformers

Role = Literal["train", "validation", "test"]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_BATCH = 1000
_SIDES = ("source", "target")
_PAIRS = ("pair", "choices", "question")  # kinds whose rows are pairs of texts
_FORMAT = 2  # of stored statistics; raise it when what is counted changes


class CorpusRole(NamedTuple):
    """A corpus and its role for a condition; for translation, the language is ``source/target``."""

    task: str
    language: str
    role: Role
    corpus: Corpus

    @property
    def direction(self) -> tuple[str, str] | None:
        """Source and target of translation."""
        source, between, target = self.language.partition("/")
        return (source, target) if between else None


@dataclass(frozen=True)
class Lengths:
    """Statistics of the lengths of sentences."""

    total: int
    mean: float
    median: float
    p95: float
    longest: int


@dataclass(frozen=True)
class CorpusStats:
    """Statistics of a corpus.

    Attributes:
        name: Name of the corpus.
        task: The task that it is used for.
        language: Its language.
        role: Its role.
        licence: The licence; ``None`` if unknown.
        non_commercial: Whether the licence forbids commercial use.
        sha256: Hash of the file.
        sentences: Number of sentences, lines or pairs.
        words: Lengths of sentences in words; texts are split at white space.
        tokenizer: Lengths of sentences in tokens, without special tokens; ``None`` without a tokenizer.
        labels: Number of occurrences of each label.
        unknown: Number of unknown tokens.
        too_long: Number of sentences with more tokens, including special tokens, than ``max_length``; for bitext, of
            sides of pairs.
        empty: Number of sentences that are empty or have an empty word.
        duplicates: Number of sentences that occurred before in the same corpus.
        header: The header that the file begins with, which is not data; ``None`` if it has none.
    """

    name: str
    task: str
    language: str
    role: Role
    licence: str | None
    non_commercial: bool
    sha256: str
    sentences: int
    words: Lengths
    tokens: Lengths | None
    labels: Mapping[str, int]
    unknown: int
    too_long: int
    empty: int
    duplicates: int
    header: str | None


@dataclass(frozen=True)
class Overlap:
    """Sentences of a corpus that are also in another, compared without regard to case and spaces.

    For translations there are three: pairs (in either direction), and sources and targets that are on any side there.
    """

    name: str
    other: str
    count: int
    share: float
    side: str | None = None


@dataclass(frozen=True)
class Report:
    """The result of a check, with issues in the order of their severity."""

    corpora: tuple[CorpusStats, ...]
    overlaps: tuple[Overlap, ...]
    issues: tuple[Issue, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return asdict(self)


class Seen(NamedTuple):
    """What is kept of a corpus that was read."""

    use: CorpusRole
    facts: CorpusStats
    hashes_N: Hashes
    sides: tuple[Hashes, ...]  # of bitext
    texts_N: Hashes  # all texts in it
    positions_N: Hashes | None  # of the examples in the whole corpus, if they are a random choice
    first_label: str | None


def check_corpora(  # noqa: PLR0913 - options of one check
    uses: Iterable[CorpusRole],
    *,
    tokenizer: "Tokenizer | None" = None,
    max_length: int | None = None,
    tokenized: int | None = None,
    known_labels: Mapping[str, Collection[str]] | None = None,
    languages: Sequence[str] = (),
    cache: Path | None = None,
    require_tests: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Read corpora once and compare them.

    Args:
        uses: The corpora and their roles.
        tokenizer: The backbone's tokenizer, to count tokens. By default tokens are not counted.
        max_length: Maximum length of an input in tokens, special tokens included.
        tokenized: Count the tokens of this many examples of each corpus only. Default: of all.
        known_labels: Labels by task that the model was trained on before. Default: none.
        languages: All languages of the recipe, to find two codes of one language. Default: none.
        cache: Directory where the statistics of corpora are stored, and found the next time. Default: none.
        require_tests: Whether a test corpus that cannot be read is an error. Otherwise it is an issue.
        progress: Called with the name of each corpus before it is read.
    """
    seen, unread = [], []
    for use in uses:
        if progress:
            progress(use.corpus.name)
        try:
            seen.append(_look_cached(use, tokenizer, max_length, tokenized, cache))
        except PolyloomError as error:
            if require_tests or use.role != "test":
                raise
            unread.append(unread_test(str(error)))
    overlaps = list(_overlaps(seen))
    issues = chain(
        overlap_issues(overlaps),
        find_issues(seen, known_labels or {}, languages=languages, max_length=max_length),
        unread,
    )
    order: list[Severity] = ["serious", "check", "note"]
    once = dict.fromkeys(issues)  # one file may be used for two directions
    return Report(
        tuple(corpus.facts for corpus in seen),
        tuple(overlap for _, _, overlap in overlaps),
        tuple(sorted(once, key=lambda issue: order.index(issue.severity))),
    )


def text_key(record: Record) -> int:
    """Hash the text of a record: the same for words and for their text, and for both directions of translation."""
    if isinstance(record, Bitext):
        low, high = sorted(side_keys(record))
        return _hash(low.to_bytes(8) + high.to_bytes(8))
    if isinstance(record, Pair | Choices | Question | Conversation):
        return _text_hash("\0".join(_parts(record)))
    return _text_hash(record.text if isinstance(record, Text | LabelledText) else "".join(record.words))


def side_keys(record: Bitext) -> tuple[int, int]:
    """Return ``text_key`` of source and target alone."""
    return _text_hash(record.source), _text_hash(record.target)


def _text_hash(text: str) -> int:
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _hash(plain.encode("utf-8", "surrogatepass"))


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _look_cached(
    use: CorpusRole, tokenizer: "Tokenizer | None", max_length: int | None, tokenized: int | None, cache: Path | None
) -> Seen:
    """Read one corpus, or what was stored when it was read before."""
    if cache is None:
        return _look(use, tokenizer, max_length, tokenized)
    corpus, kind = use.corpus, KINDS[use.task]
    reader = [reader_of(corpus.source, kind)] if isinstance(corpus.source, Path | File) else []
    described = {
        "format": _FORMAT, "task": use.task, "language": use.language, "corpus": corpus.name, "sha256": corpus.sha256,
        "start": corpus.start, "stop": corpus.stop, "max_length": max_length, "tokenized": tokenized,
        "tokenizer": tokenizer.fingerprint if tokenizer else None, "code": code_hashes(reader),
    }  # fmt: skip
    name = blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=12).hexdigest()
    path = cache / f"check-{name}.bin"
    if (stored := _read_stored(path)) is not None:
        return _restore(stored, use)
    with locked(str(path)):
        if (stored := _read_stored(path)) is not None:  # another process read it in the meantime
            return _restore(stored, use)
        seen = _look(use, tokenizer, max_length, tokenized)
        _store(path, seen)
        return seen


def _store(path: Path, seen: Seen) -> None:
    """Store the statistics of a corpus: a checksum, a line of JSON, and the hashes of its texts."""
    arrays = (seen.hashes_N, *seen.sides, *([] if seen.positions_N is None else [seen.positions_N]))
    about = {"facts": asdict(seen.facts), "first_label": seen.first_label, "arrays": len(arrays)}
    content = b"".join([json.dumps(about).encode(), b"\n", *(array_N.tobytes() for array_N in arrays)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as partial:
        partial.write_bytes(zlib.crc32(content).to_bytes(4) + content)


def _read_stored(path: Path) -> bytes | None:
    """Read what `_store` wrote; nothing if it is not there or damaged, since the corpus can be read again."""
    stored = path.read_bytes() if path.exists() else b""
    return stored[4:] if stored and stored[:4] == zlib.crc32(stored[4:]).to_bytes(4) else None


def _restore(stored: bytes, use: CorpusRole) -> Seen:
    line, _, rest = stored.partition(b"\n")
    about = json.loads(line)
    facts, corpus = about["facts"], use.corpus
    facts |= {key: facts[key] and Lengths(**facts[key]) for key in ("words", "tokens")}
    facts |= {"role": use.role, "licence": corpus.licence, "non_commercial": corpus.non_commercial}
    hashes_N, *sides = np.split(np.frombuffer(rest, dtype=np.uint64), about["arrays"])
    positions_N = sides.pop() if corpus.sample else None
    texts_N = np.sort(np.concatenate(sides)) if sides else hashes_N
    return Seen(use, CorpusStats(**facts), hashes_N, tuple(sides), texts_N, positions_N, about["first_label"])


def _look(use: CorpusRole, tokenizer: "Tokenizer | None", max_length: int | None, tokenized: int | None = None) -> Seen:
    """Read one corpus."""
    if use.task not in KINDS:
        raise DataError(use.corpus.name, None, f"no check for {use.task!r}. {suggest(use.task, KINDS)}")
    kind = KINDS[use.task]
    hashes, positions, words, lengths = array("Q"), array("Q"), array("I"), array("I")
    sides = (array("Q"), array("Q"))
    labels: Counter[str] = Counter()
    first_label: str | None = None
    empty = unknown = 0
    corpus, numbered = use.corpus, _numbered(use)
    while rows := list(islice(numbered, _BATCH)):
        batch = [record for _, record in rows]
        positions.extend(position for position, _ in rows if corpus.sample)
        for record in batch:
            parts = _parts(record)
            empty += not parts or not all(part.strip() for part in parts)
            hashes.append(text_key(record))
            if isinstance(record, Bitext):
                for side, key in zip(sides, side_keys(record), strict=True):
                    side.append(key)
            words.append(len(parts) if kind in ("tags", "tree") else sum(len(part.split()) for part in parts))
            labels.update(_labels(record))
            first_label = first_label or next(iter(labels), None)
        chosen = batch if tokenized is None else batch[: max(0, tokenized - len(hashes) + len(batch))]
        for ids in _cut(chosen, kind, tokenizer) if tokenizer and chosen else ():
            lengths.append(len(ids))
            unknown += list(ids).count(tokenizer.unk_id) if tokenizer else 0
    hashes_N, *sides_N = (np.sort(np.frombuffer(keys, dtype=np.uint64)) for keys in (hashes, *sides))
    room = (
        np.inf if tokenizer is None or max_length is None else max_length - tokenizer.num_special(pair=kind in _PAIRS)
    )
    facts = CorpusStats(
        name=corpus.name, task=use.task, language=use.language, role=use.role, licence=corpus.licence,
        non_commercial=corpus.non_commercial, sha256=corpus.sha256, sentences=len(hashes), words=_lengths(words),
        tokens=_lengths(lengths) if tokenizer else None, labels=dict(labels.most_common()), unknown=unknown,
        too_long=int((np.frombuffer(lengths, dtype=np.uint32) > room).sum()) if lengths else 0, empty=empty,
        duplicates=int((hashes_N[1:] == hashes_N[:-1]).sum()),
        header=header_of(corpus.source, kind) if isinstance(corpus.source, Path | File) and len(hashes) else None,
    )  # fmt: skip
    positions_N = np.frombuffer(positions, dtype=np.uint64) if corpus.sample else None
    if kind == "bitext":
        return Seen(use, facts, hashes_N, tuple(sides_N), np.sort(np.concatenate(sides_N)), positions_N, None)
    return Seen(use, facts, hashes_N, (), hashes_N, positions_N, first_label)


def _numbered(use: CorpusRole) -> Iterator[tuple[int, Record]]:
    """Read the examples of a corpus. If they are a random choice, each has its position in the whole corpus."""
    corpus, kind = use.corpus, KINDS[use.task]
    if corpus.sample:
        return corpus.numbered(kind, direction=use.direction)
    return enumerate(corpus.records(kind, direction=use.direction))


def _parts(record: Record) -> tuple[str, ...]:
    if isinstance(record, Pair):
        return record.first, record.second
    if isinstance(record, Bitext):
        return record.source, record.target
    if isinstance(record, Choices):
        return record.premise, record.question, *record.choices
    if isinstance(record, Question):
        return record.question, record.context
    if isinstance(record, Conversation):
        return tuple(message.content for message in record.messages)
    return (record.text,) if isinstance(record, Text | LabelledText) else record.words


def _labels(record: Record) -> tuple[str, ...]:
    if isinstance(record, Tagged):
        return record.tags
    if isinstance(record, Tree):
        return record.relations
    return (record.label,) if isinstance(record, Pair | LabelledText | Choices) else ()


def _cut(batch: Sequence[Record], kind: Kind, tokenizer: "Tokenizer") -> Iterator[list[int]]:
    """Tokenize each record, or each side of bitext; of choices, premise and question with the longest of them."""
    parts = [_parts(record) for record in batch]
    if kind in ("tags", "tree"):
        yield from (words.ids for words in tokenizer.words(parts))
        return
    flat = iter(tokenizer.text([part for record in parts for part in record]))
    if kind == "bitext":
        yield from flat
    for record in parts if kind != "bitext" else ():
        tokens = [next(flat) for _ in record]
        if kind == "choices":
            tokens[2:] = [max(tokens[2:], key=len)]
        yield [token for text in tokens for token in text]


def _lengths(counts: "array[int]") -> Lengths:
    counts_N = np.frombuffer(counts, dtype=np.uint32) if counts else np.zeros(1, dtype=np.uint32)
    median, p95 = np.percentile(counts_N, [50, 95])
    return Lengths(int(counts_N.sum()), float(counts_N.mean()), float(median), float(p95), int(counts_N.max()))


def _overlaps(seen: Sequence[Seen]) -> Iterator[tuple[Seen, Seen, Overlap]]:
    """Compare test corpora with training and validation corpora, and validation corpora with training corpora."""
    before: Mapping[Role, tuple[Role, ...]] = {"train": (), "validation": ("train",), "test": ("train", "validation")}
    for corpus in seen:
        for other in (other for other in seen if other.use.role in before[corpus.use.role]):
            whole_N = other.hashes_N if corpus.sides else other.texts_N
            counts = [max(_shared(corpus.hashes_N, whole_N), _shared_slice(corpus, other))]
            counts += [_shared(side_N, other.texts_N) for side_N in corpus.sides]
            for side, count in zip((None, *_SIDES), counts, strict=False):
                if count:
                    share = count / corpus.facts.sentences
                    yield corpus, other, Overlap(corpus.facts.name, other.facts.name, count, share, side)


def _shared(one_N: Hashes, other_N: Hashes) -> int:
    """Count the sentences of a corpus that are in another; both are sorted."""
    if not len(one_N) or not len(other_N):
        return 0
    at_N = np.searchsorted(other_N, one_N).clip(max=len(other_N) - 1)
    return int((other_N[at_N] == one_N).sum())


def _shared_slice(corpus: Seen, other: Seen) -> int:
    """Count the examples that two slices of the same file have in common, whatever is read of them."""
    corpora = corpus.use.corpus, other.use.corpus
    files = [item.source.path if isinstance(item.source, File) else item.source for item in corpora]
    if files[0] != files[1]:
        return 0
    one, two = sorted((_positions(corpus), _positions(other)), key=len)
    return sum(position in two for position in one)


def _positions(seen: Seen) -> range | set[int]:
    """Return the positions of the examples of a slice in its file."""
    start = seen.use.corpus.start
    return range(start, start + seen.facts.sentences) if seen.positions_N is None else set(seen.positions_N.tolist())
