"""Look at corpora before training on them: what is in them, and what a person should worry about.

Texts are kept as hashes of 8 bytes and lengths of 4, so that memory stays at 16 bytes per sentence (at 48
per pair of a sentence and its translation).
"""

import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from polyloom.data.catalog import KINDS, Corpus
from polyloom.data.records import Bitext, Kind, LabelledText, Pair, Record, Tagged, Text, Tree
from polyloom.errors import DataError, suggest

if TYPE_CHECKING:
    from polyloom.data.tokenization.tokenizer import Tokenizer  # imports transformers

Role = Literal["train", "validation", "test"]
Severity = Literal["serious", "check", "note"]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
MUCH_OVERLAP = 0.01  # short sentences recur by nature; above this share, scores are skewed
MANY_UNKNOWN = 0.01
MANY_DUPLICATES = 0.05
MANY_LONG = 0.01
UNLABELED = "_"  # how CoNLL-U writes that there is no value
_BATCH = 1000
_SIDES = ("source", "target")


class CorpusRole(NamedTuple):
    """A corpus in the role it plays for a condition; of translation, the language is ``source/target``."""

    task: str
    language: str
    role: Role
    corpus: Corpus


@dataclass(frozen=True)
class Lengths:
    """How long the sentences are."""

    total: int
    mean: float
    median: float
    p95: float
    longest: int


@dataclass(frozen=True)
class CorpusStats:
    """What is in a corpus.

    Attributes:
        name: Of the corpus.
        task: What it is used for.
        language: In which language.
        role: In which role.
        licence: If known.
        non_commercial: Whether the licence forbids commercial use.
        sha256: Of the file.
        sentences: Sentences, lines or pairs.
        words: Their lengths in words; texts are counted at white space.
        tokens: Their lengths in pieces, without special tokens.
        labels: How often each label occurs.
        unknown: Pieces that are unknown.
        too_long: Sentences of more pieces, with special tokens, than ``max_length``; of bitext, sides of pairs.
        empty: Sentences with nothing in them, or with an empty word.
        duplicates: Sentences that came before in the same corpus.
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


@dataclass(frozen=True)
class Overlap:
    """Sentences of a corpus that are also in another, by their text without regard to case and spaces.

    Of translations there are three: pairs (in either direction), and sources and targets that are on any side there.
    """

    name: str
    other: str
    count: int
    share: float
    side: str | None = None


@dataclass(frozen=True)
class Issue:
    """What a person should look at."""

    severity: Severity
    what: str


@dataclass(frozen=True)
class Report:
    """All that was found, worries in the order of their severity."""

    corpora: tuple[CorpusStats, ...]
    overlaps: tuple[Overlap, ...]
    issues: tuple[Issue, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class _Seen(NamedTuple):
    use: CorpusRole
    facts: CorpusStats
    hashes_N: Hashes
    sides: tuple[Hashes, ...]  # of bitext
    texts_N: Hashes  # all that can be read in it


def check_corpora(
    uses: Iterable[CorpusRole],
    *,
    tokenizer: "Tokenizer | None" = None,
    max_length: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Read corpora once, and compare them.

    Args:
        uses: The corpora and their roles.
        tokenizer: The backbone's tokenizer, to count pieces.
        max_length: The longest input in pieces, special tokens included.
        progress: Called with the name of each corpus before it is read.
    """
    seen = []
    for use in uses:
        if progress:
            progress(use.corpus.name)
        seen.append(_look(use, tokenizer, max_length))
    overlaps = list(_overlaps(seen))
    issues = chain(
        _overlap_worries(overlaps), _label_worries(seen), _corpus_worries(seen, max_length), _unknown_worries(seen),
        _licence_worries(seen),
    )  # fmt: skip
    order: list[Severity] = ["serious", "check", "note"]
    once = dict.fromkeys(issues)  # one file may serve two directions
    return Report(
        tuple(one.facts for one in seen),
        tuple(overlap for _, _, overlap in overlaps),
        tuple(sorted(once, key=lambda issue: order.index(issue.severity))),
    )


def text_key(record: Record) -> int:
    """A hash of what a record says: the same for words and for the text that they make up, and for both directions."""
    if isinstance(record, Bitext):
        one, other = sorted(side_keys(record))
        return _hash(one.to_bytes(8) + other.to_bytes(8))
    if isinstance(record, Pair):
        return _text_hash(f"{record.first}\0{record.second}")
    return _text_hash(record.text if isinstance(record, Text | LabelledText) else "".join(record.words))


def side_keys(record: Bitext) -> tuple[int, int]:
    """What ``text_key`` would be of source and target alone."""
    return _text_hash(record.source), _text_hash(record.target)


def _text_hash(text: str) -> int:
    plain = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _hash(plain.encode("utf-8", "surrogatepass"))


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _look(use: CorpusRole, tokenizer: "Tokenizer | None", max_length: int | None) -> _Seen:
    """Read one corpus."""
    if use.task not in KINDS:
        raise DataError(use.corpus.name, None, f"no check for {use.task!r}. {suggest(use.task, KINDS)}")
    kind = KINDS[use.task]
    hashes, words, lengths = array("Q"), array("I"), array("I")
    sides = (array("Q"), array("Q"))
    labels: Counter[str] = Counter()
    empty = unknown = 0
    source, between, target = use.language.partition("/")
    records = use.corpus.records(kind, direction=(source, target) if between else None)
    while batch := list(islice(records, _BATCH)):
        for record in batch:
            parts = _parts(record)
            empty += not parts or not all(part.strip() for part in parts)
            hashes.append(text_key(record))
            if isinstance(record, Bitext):
                for side, key in zip(sides, side_keys(record), strict=True):
                    side.append(key)
            words.append(len(parts) if kind in ("tags", "tree") else sum(len(part.split()) for part in parts))
            labels.update(_labels(record))
        for ids in _cut(batch, kind, tokenizer) if tokenizer else ():
            lengths.append(len(ids))
            unknown += list(ids).count(tokenizer.unk_id) if tokenizer else 0
    hashes_N, *sides_N = (np.sort(np.frombuffer(keys, dtype=np.uint64)) for keys in (hashes, *sides))
    room = (
        np.inf if tokenizer is None or max_length is None else max_length - tokenizer.num_special(pair=kind == "pair")
    )
    corpus = use.corpus
    facts = CorpusStats(
        name=corpus.name, task=use.task, language=use.language, role=use.role, licence=corpus.licence,
        non_commercial=corpus.non_commercial, sha256=corpus.sha256, sentences=len(hashes), words=_lengths(words),
        tokens=_lengths(lengths) if tokenizer else None, labels=dict(labels.most_common()), unknown=unknown,
        too_long=int((np.frombuffer(lengths, dtype=np.uint32) > room).sum()) if lengths else 0, empty=empty,
        duplicates=int((hashes_N[1:] == hashes_N[:-1]).sum()),
    )  # fmt: skip
    if kind == "bitext":
        return _Seen(use, facts, hashes_N, tuple(sides_N), np.sort(np.concatenate(sides_N)))
    return _Seen(use, facts, hashes_N, (), hashes_N)


def _parts(record: Record) -> tuple[str, ...]:
    if isinstance(record, Pair):
        return record.first, record.second
    if isinstance(record, Bitext):
        return record.source, record.target
    return (record.text,) if isinstance(record, Text | LabelledText) else record.words


def _labels(record: Record) -> tuple[str, ...]:
    if isinstance(record, Tagged):
        return record.tags
    if isinstance(record, Tree):
        return record.relations
    return (record.label,) if isinstance(record, Pair | LabelledText) else ()


def _cut(batch: Sequence[Record], kind: Kind, tokenizer: "Tokenizer") -> Iterator[list[int]]:
    """The pieces of each record, or of each side of bitext."""
    parts = [_parts(record) for record in batch]
    if kind in ("tags", "tree"):
        yield from (words.ids for words in tokenizer.words(parts))
        return
    flat = iter(tokenizer.text([part for record in parts for part in record]))
    if kind == "bitext":
        yield from flat
    for record in parts if kind != "bitext" else ():
        yield [piece for _ in record for piece in next(flat)]


def _lengths(counts: "array[int]") -> Lengths:
    counts_N = np.frombuffer(counts, dtype=np.uint32) if counts else np.zeros(1, dtype=np.uint32)
    median, p95 = np.percentile(counts_N, [50, 95])
    return Lengths(int(counts_N.sum()), float(counts_N.mean()), float(median), float(p95), int(counts_N.max()))


def _overlaps(seen: Sequence[_Seen]) -> Iterator[tuple[_Seen, _Seen, Overlap]]:
    """Every test corpus against all that a model learns or is chosen from, every validation corpus against training."""
    before: Mapping[Role, tuple[Role, ...]] = {"train": (), "validation": ("train",), "test": ("train", "validation")}
    for one in seen:
        for other in (other for other in seen if other.use.role in before[one.use.role]):
            whole_N = other.hashes_N if one.sides else other.texts_N
            counts = [max(_shared(one.hashes_N, whole_N), _shared_slice(one, other))]
            counts += [_shared(side_N, other.texts_N) for side_N in one.sides]
            for side, count in zip((None, *_SIDES), counts, strict=False):
                if count:
                    share = count / one.facts.sentences
                    yield one, other, Overlap(one.facts.name, other.facts.name, count, share, side)


def _shared(one_N: Hashes, other_N: Hashes) -> int:
    """How many sentences of a corpus are in another; both are sorted."""
    if not len(one_N) or not len(other_N):
        return 0
    at_N = np.searchsorted(other_N, one_N).clip(max=len(other_N) - 1)
    return int((other_N[at_N] == one_N).sum())


def _shared_slice(one: _Seen, other: _Seen) -> int:
    """How many examples two slices of the same file have in common, whatever is read of them."""
    if one.use.corpus.source != other.use.corpus.source:
        return 0
    starts = [seen.use.corpus.start for seen in (one, other)]
    stops = [start + seen.facts.sentences for start, seen in zip(starts, (one, other), strict=True)]
    return max(0, min(stops) - max(starts))


def _overlap_worries(overlaps: Sequence[tuple[_Seen, _Seen, Overlap]]) -> Iterator[Issue]:
    """Those that skew scores one by one, the rest in a line."""
    few, as_text = [], []
    pairs = {(overlap.name, overlap.other): overlap.share for *_, overlap in overlaps if overlap.side is None}
    for one, other, overlap in sorted(overlaps, key=lambda found: -found[2].share):
        short = f"{overlap.name} in {overlap.other} ({overlap.count:,})"
        if overlap.side and overlap.share - pairs.get((overlap.name, overlap.other), 0) < MUCH_OVERLAP:
            continue  # a pair that recurs is one thing to worry about, not three
        if one.use.task != other.use.task:
            as_text.append(short)
        elif overlap.share < MUCH_OVERLAP:
            few.append(short)
        else:
            leak = (one.use.role, other.use.role) == ("test", "train")
            what = f"{overlap.side}s" if overlap.side else "pairs" if one.sides else "sentences"
            yield Issue(
                "serious" if leak and overlap.side != "source" else "check",
                f"{overlap.count:,} of {one.facts.sentences:,} {what} ({_percent(overlap.share)}) of {overlap.name} "
                f"are also in {overlap.other}: {'scores' if leak else 'the choice of the model'} will be skewed.",
            )
    if as_text:
        yield Issue("note", f"sentences whose text is seen in another task: {_some(as_text)}.")
    if few:
        yield Issue("note", f"a few sentences (below {_percent(MUCH_OVERLAP)}) recur: {_some(few)}.")


def _label_worries(seen: Sequence[_Seen]) -> Iterator[Issue]:
    """Labels that cannot be learned, are missing, or are all alike."""
    learned: dict[str, set[str]] = defaultdict(set)
    for one in seen:
        if one.use.role == "train":
            learned[one.use.task] |= {_scored(label, one.use.task) for label in one.facts.labels}
    for one in seen:
        labels, total, task = one.facts.labels, sum(one.facts.labels.values()), one.use.task
        new = [label for label in labels if learned[task] and _scored(label, task) not in learned[task]]
        if new and one.use.role != "train":
            share = _percent(sum(labels[label] for label in new) / total)
            yield Issue(
                "check",
                f"{one.facts.name} has labels that no {task} training corpus has ({share} of all): {', '.join(new)}. "
                "They can never be predicted.",
            )
        if labels.get(UNLABELED):
            yield Issue("serious", f"{labels[UNLABELED]:,} of {total:,} labels of {one.facts.name} are missing ('_').")
        elif len(labels) == 1:
            yield Issue("serious", f"{one.facts.name} has only one label, {next(iter(labels))}: is it labelled at all?")


def _scored(label: str, task: str) -> str:
    """What counts when scores are made: of relations, the part before the colon."""
    return label.partition(":")[0] if KINDS[task] == "tree" else label


def _corpus_worries(seen: Sequence[_Seen], max_length: int | None) -> Iterator[Issue]:
    long, repeated = [], []
    for facts in (one.facts for one in seen):
        count = max(1, facts.sentences)
        if not facts.sentences:
            yield Issue("serious", f"{facts.name} has no sentences.")
        if facts.empty:
            yield Issue("check", f"{facts.empty:,} of {count:,} sentences of {facts.name} have an empty part.")
        if facts.too_long > MANY_LONG * count:
            long.append(f"{facts.name} ({_percent(facts.too_long / count)})")
        if facts.duplicates > MANY_DUPLICATES * count:
            repeated.append(f"{facts.name} ({_percent(facts.duplicates / count)})")
    if long:
        yield Issue("note", f"sentences longer than {max_length} pieces: {_some(dict.fromkeys(long))}.")
    if repeated:
        yield Issue("note", f"repeated sentences: {_some(dict.fromkeys(repeated))}.")


def _unknown_worries(seen: Sequence[_Seen]) -> Iterator[Issue]:
    unknown, total = Counter[str](), Counter[str]()
    for one in seen:
        unknown[one.use.language] += one.facts.unknown
        total[one.use.language] += one.facts.tokens.total if one.facts.tokens else 0
    for language, count in unknown.items():
        if count > MANY_UNKNOWN * total[language]:
            share = _percent(count / total[language])
            yield Issue("check", f"{share} of the pieces of {language} are unknown: letters are not in the vocabulary.")


def _licence_worries(seen: Sequence[_Seen]) -> Iterator[Issue]:
    names = dict.fromkeys(one.facts.name for one in seen if one.facts.non_commercial)
    if names:
        yield Issue("note", f"not for commercial use: {_some(names)}.")


def _some(things: Collection[str], limit: int = 8) -> str:
    """The first few; the report has them all."""
    more = f" and {len(things) - limit:,} more" if len(things) > limit else ""
    return ", ".join(list(things)[:limit]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"
