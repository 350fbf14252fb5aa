"""Count what is in a corpus, and keep a hash of each of its texts for comparisons with other corpora.

Of a text only a hash and lengths are kept: 16 bytes per sentence, 48 per pair of a sentence and its translation.
"""

import json
import unicodedata
import zlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from polyloom.data.catalog import KINDS, Corpus
from polyloom.data.kinds import RECORDS, RecordKind, WordsKind, kind_of
from polyloom.data.readers.formats import header_of, reader_of
from polyloom.data.records import Bitext, Record
from polyloom.errors import DataError, suggest
from polyloom.io.atomic import new_file
from polyloom.io.files import File
from polyloom.io.locks import locked
from polyloom.registry import code_hashes

if TYPE_CHECKING:
    from polyloom.data.tokenization.tokenizer import Tokenizer  # imports transformers

Role = Literal["train", "validation", "test"]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
_BATCH = 1000
_FORMAT = 1  # of stored statistics; raise it when what is counted changes


class CorpusRole(NamedTuple):
    """A corpus and its role for a condition; for translation, the language is ``source/target``."""

    task: str
    language: str
    role: Role
    corpus: Corpus

    @property
    def direction(self) -> tuple[str, str] | None:
        """Source and target of translation."""
        source, slash, target = self.language.partition("/")
        return (source, target) if slash else None


@dataclass(frozen=True)
class Lengths:
    """Statistics of the lengths of sentences."""

    total: int
    mean: float
    median: float
    p95: float
    longest: int

    @classmethod
    def of(cls, counts: "array[int]") -> "Lengths":
        """Summarise the lengths of all sentences; all are 0 if there are no sentences."""
        counts_N = np.frombuffer(counts, dtype=np.uint32) if counts else np.zeros(1, dtype=np.uint32)
        median, p95 = np.percentile(counts_N, [50, 95])
        return cls(int(counts_N.sum()), float(counts_N.mean()), float(median), float(p95), int(counts_N.max()))


@dataclass(frozen=True)
class CorpusStats:
    """Statistics of a corpus."""

    name: str
    task: str
    language: str
    role: Role
    licence: str | None
    """``None`` if unknown."""
    non_commercial: bool
    sha256: str
    """Hash of its files."""
    sentences: int
    """Number of sentences, lines or pairs."""
    words: Lengths
    """Lengths of sentences in words; texts are split at white space."""
    tokens: Lengths | None
    """Lengths of sentences in tokens, without special tokens; ``None`` without a tokenizer."""
    labels: Mapping[str, int]
    """Number of occurrences of each label."""
    unknown: int
    """Number of unknown tokens."""
    too_long: int
    """Number of sentences, or sides of translations, with more tokens than `max_length`, special tokens included."""
    empty: int
    """Number of sentences that are empty or have an empty word."""
    duplicates: int
    """Number of sentences that occur earlier in the same corpus."""
    header: str | None
    """The header that the file begins with, which is not data; ``None`` if it has none."""


class ScannedCorpus(NamedTuple):
    """What is kept of a corpus that was read. All arrays of hashes are sorted."""

    use: CorpusRole
    stats: CorpusStats
    hashes_N: Hashes  # of records
    sides: tuple[Hashes, ...]  # of the sources and of the targets of bitext; empty for other kinds
    texts_N: Hashes  # of both sides of bitext together; of the records of other kinds
    positions_N: Hashes | None  # of the examples in the whole corpus, if they are a random choice
    first_label: str | None


def scan_corpus(
    use: CorpusRole, tokenizer: "Tokenizer | None", max_length: int | None, tokenized: int | None, cache: Path | None
) -> ScannedCorpus:
    """Read a corpus, or load what was stored when it was read earlier.

    Args:
        use: The corpus and its role.
        tokenizer: Counts tokens, if there is one.
        max_length: Maximum length of an input in tokens, special tokens included.
        tokenized: Count the tokens of this many examples only. Default: of all.
        cache: Directory of stored statistics.
    """
    corpus = use.corpus
    if use.task not in KINDS:
        raise DataError(corpus.name, None, f"no check for {use.task!r}. {suggest(use.task, KINDS)}")
    if cache is None:
        return _scan(use, tokenizer, max_length, tokenized)

    # The name of the stored file depends on everything that is counted, and on the code of readers from outside.
    reader = [reader_of(corpus.source, KINDS[use.task])] if isinstance(corpus.source, Path | File) else []
    description = {
        "format": _FORMAT, "task": use.task, "language": use.language, "corpus": corpus.name, "sha256": corpus.sha256,
        "start": corpus.start, "stop": corpus.stop, "max_length": max_length, "tokenized": tokenized,
        "tokenizer": tokenizer.fingerprint if tokenizer else None, "code": code_hashes(reader),
    }  # fmt: skip
    name = blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=12).hexdigest()
    path = cache / f"check-{name}.bin"
    if (stored := _load(path, use)) is not None:
        return stored
    # With a lock, so that processes that start together do not all read a large corpus.
    with locked(str(path)):
        if (stored := _load(path, use)) is not None:  # another process read the corpus while this one waited
            return stored
        scanned = _scan(use, tokenizer, max_length, tokenized)
        _store(path, scanned)
        return scanned


def text_key(record: Record, kind: RecordKind | None = None) -> int:
    """Hash the text of a record: the same for words and for their text, and for both directions of translation."""
    if isinstance(record, Bitext):
        # Sorted: a pair that was seen in the other direction was seen, too.
        low, high = sorted(side_keys(record))
        return _hash(low.to_bytes(8) + high.to_bytes(8))
    kind = kind or kind_of(record)
    # Words are joined by nothing, as spaces do not count: a sentence has the same hash in a treebank and as raw text.
    # Separate texts stay apart, so that ("a", "bc") and ("ab", "c") differ.
    return _text_hash(("" if isinstance(kind, WordsKind) else "\0").join(kind.texts(record)))


def side_keys(record: Bitext) -> tuple[int, int]:
    """Return ``text_key`` of source and target alone."""
    return _text_hash(record.source), _text_hash(record.target)


def _text_hash(text: str) -> int:
    """Hash a text without regard to case, spaces and the form of Unicode."""
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _hash(plain.encode("utf-8", "surrogatepass"))


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _store(path: Path, scanned: ScannedCorpus) -> None:
    """Store the statistics of a corpus: a checksum, a line of JSON, and the hashes of its texts."""
    arrays = [scanned.hashes_N, *scanned.sides]
    if scanned.positions_N is not None:
        arrays.append(scanned.positions_N)
    head = {"stats": asdict(scanned.stats), "first_label": scanned.first_label, "arrays": len(arrays)}
    content = b"".join([json.dumps(head).encode(), b"\n", *(array_N.tobytes() for array_N in arrays)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as partial:
        partial.write_bytes(zlib.crc32(content).to_bytes(4) + content)


def _load(path: Path, use: CorpusRole) -> ScannedCorpus | None:
    """Load what `_store` wrote; ``None`` if it is missing or damaged, since the corpus can be read again."""
    stored = path.read_bytes() if path.exists() else b""
    checksum, content = stored[:4], stored[4:]
    if not content or checksum != zlib.crc32(content).to_bytes(4):
        return None
    line, _, hashes = content.partition(b"\n")
    head, corpus = json.loads(line), use.corpus
    stats = head["stats"]
    stats |= {key: stats[key] and Lengths(**stats[key]) for key in ("words", "tokens")}
    # Role and licence are those of this use: they are not part of the description that names the file.
    stats |= {"role": use.role, "licence": corpus.licence, "non_commercial": corpus.non_commercial}
    hashes_N, *sides = np.split(np.frombuffer(hashes, dtype=np.uint64), head["arrays"])  # all have the same length
    positions_N = sides.pop() if corpus.sample else None
    texts_N = np.sort(np.concatenate(sides)) if sides else hashes_N
    return ScannedCorpus(use, CorpusStats(**stats), hashes_N, tuple(sides), texts_N, positions_N, head["first_label"])


def _scan(
    use: CorpusRole, tokenizer: "Tokenizer | None", max_length: int | None, tokenized: int | None
) -> ScannedCorpus:
    """Read a corpus once, in batches, and count."""
    corpus, kind = use.corpus, RECORDS.find(KINDS[use.task])
    # Typed arrays instead of lists: the memory of a check is a few bytes per sentence, also for a hundred million.
    hashes, sides, positions = array("Q"), (array("Q"), array("Q")), array("Q")
    words, tokens = array("I"), array("I")
    labels: Counter[str] = Counter()
    first_label: str | None = None
    empty = unknown = 0
    numbered = (
        corpus.numbered(kind.name, direction=use.direction)
        if corpus.sample
        else enumerate(corpus.records(kind.name, direction=use.direction))
    )
    while rows := list(islice(numbered, _BATCH)):
        records = [record for _, record in rows]
        if tokenizer:
            chosen = records if tokenized is None else records[: max(0, tokenized - len(hashes))]
            for ids in _token_ids(chosen, kind, tokenizer):
                tokens.append(len(ids))
                unknown += ids.count(tokenizer.unk_id)
        if corpus.sample:
            positions.extend(position for position, _ in rows)
        for record in records:
            parts = kind.texts(record)
            empty += not parts or not all(part.strip() for part in parts)
            hashes.append(text_key(record, kind))
            if isinstance(record, Bitext):
                for side, key in zip(sides, side_keys(record), strict=True):
                    side.append(key)
            words.append(len(parts) if isinstance(kind, WordsKind) else sum(len(part.split()) for part in parts))
            record_labels = kind.labels(record)
            labels.update(record_labels)
            if first_label is None and record_labels:
                first_label = record_labels[0]

    # Sorted, so that comparisons are binary searches and repeated sentences are neighbours.
    hashes_N = np.sort(np.frombuffer(hashes, dtype=np.uint64))
    sides_N = tuple(np.sort(np.frombuffer(side, dtype=np.uint64)) for side in sides) if kind.name == "bitext" else ()
    too_long = 0
    if tokenizer and max_length is not None and tokens:
        room = max_length - tokenizer.num_special(pair=len(kind.fields) > 1)
        too_long = int((np.frombuffer(tokens, dtype=np.uint32) > room).sum())
    stats = CorpusStats(
        name=corpus.name, task=use.task, language=use.language, role=use.role, licence=corpus.licence,
        non_commercial=corpus.non_commercial, sha256=corpus.sha256, sentences=len(hashes), words=Lengths.of(words),
        tokens=Lengths.of(tokens) if tokenizer else None, labels=dict(labels.most_common()), unknown=unknown,
        too_long=too_long, empty=empty, duplicates=int((hashes_N[1:] == hashes_N[:-1]).sum()),
        header=header_of(corpus.source, kind.name) if isinstance(corpus.source, Path | File) and len(hashes) else None,
    )  # fmt: skip
    texts_N = np.sort(np.concatenate(sides_N)) if sides_N else hashes_N
    positions_N = np.frombuffer(positions, dtype=np.uint64) if corpus.sample else None
    return ScannedCorpus(use, stats, hashes_N, sides_N, texts_N, positions_N, first_label)


def _token_ids(records: Sequence[Record], kind: RecordKind, tokenizer: "Tokenizer") -> list[list[int]]:
    """Tokenize each record, or each side of bitext; of choices, premise and question with the longest of them."""
    parts = [kind.texts(record) for record in records]
    if isinstance(kind, WordsKind):
        return [words.ids for words in tokenizer.words(parts)]
    ids = tokenizer.text([text for texts in parts for text in texts])  # in one call: tokenizers use all cores
    if kind.name == "bitext":
        return ids
    inputs, start = [], 0
    for texts in parts:
        tokens = ids[start : start + len(texts)]
        start += len(texts)
        if kind.name == "choices":  # each choice is an input of its own: premise, question, choice
            tokens[2:] = [max(tokens[2:], key=len)]
        inputs.append([token for text in tokens for token in text])
    return inputs
