"""Check corpora before training: count what is in them, and find leaks, missing labels and other issues.

Of a text only a hash and lengths are kept: 16 bytes per sentence, 48 per pair of a sentence and its translation.
"""

import json
import re
import unicodedata
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from polyloom.data.catalog import KINDS, Corpus
from polyloom.data.readers.formats import header_of, reader_of
from polyloom.data.records import Bitext, Choices, Kind, LabelledText, Pair, Question, Record, Tagged, Text, Tree
from polyloom.data.typology import ISO3, iso3
from polyloom.errors import DataError, PolyloomError, suggest
from polyloom.io.atomic import new_file
from polyloom.io.files import File
from polyloom.registry import code_hashes

if TYPE_CHECKING:
    from polyloom.data.tokenization.tokenizer import Tokenizer  # imports transformers

Role = Literal["train", "validation", "test"]
Severity = Literal["serious", "check", "note"]
Mistake = Literal["test-in-train", "wrong-language", "same-language", "one-label"]  # what `data.allow` lists
Hashes = np.ndarray[Any, np.dtype[np.uint64]]
MUCH_OVERLAP = 0.01  # short sentences recur naturally; above this share, scores are skewed
ALMOST_ALL = 0.9  # of a test corpus in a training corpus: certainly a mistake; wikiann:bn/test has 67 %
MANY_UNKNOWN = 0.01
MANY_DUPLICATES = 0.05
MANY_LONG = 0.01
COMMON = 0.01  # share of the training labels from which on a label is missed in a test corpus
ENOUGH_LABELS = 100  # with fewer, rare and missing labels mean nothing
UNLABELED = "_"  # how CoNLL-U marks a missing value
_BATCH = 1000
_SIDES = ("source", "target")
_PAIRS = ("pair", "choices", "question")  # kinds whose rows are pairs of texts
_FORMAT = 1  # of stored statistics; raise it when what is counted changes
_GROUPS = ({"nob", "nno"}, {"hbs", "srp", "hrv", "bos"})  # corpora often have the code of another one of the group


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
class Issue:
    """An issue that the user should look at.

    Attributes:
        severity: How serious it may be.
        what: A sentence.
        mistake: Name of a certain mistake, which training refuses unless `data.allow` lists it. Default: not certain.
    """

    severity: Severity
    what: str
    mistake: Mistake | None = None


@dataclass(frozen=True)
class Report:
    """The result of a check, with issues in the order of their severity."""

    corpora: tuple[CorpusStats, ...]
    overlaps: tuple[Overlap, ...]
    issues: tuple[Issue, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return asdict(self)


class _Seen(NamedTuple):
    use: CorpusRole
    facts: CorpusStats
    hashes_N: Hashes
    sides: tuple[Hashes, ...]  # of bitext
    texts_N: Hashes  # all texts in it
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
        _overlap_issues(overlaps), _language_issues(seen), _same_language_issues(languages),
        _label_issues(seen, known_labels or {}),
        _rare_label_issues(seen), _header_issues(seen), _corpus_issues(seen, max_length), _unknown_issues(seen),
        _licence_issues(seen), unread,
    )  # fmt: skip
    order: list[Severity] = ["serious", "check", "note"]
    once = dict.fromkeys(issues)  # one file may be used for two directions
    return Report(
        tuple(corpus.facts for corpus in seen),
        tuple(overlap for _, _, overlap in overlaps),
        tuple(sorted(once, key=lambda issue: order.index(issue.severity))),
    )


def unread_test(error: str) -> Issue:
    """Return the issue of a test corpus that cannot be read."""
    return Issue("check", f"a test corpus cannot be read, so it is not compared with the training data: {error}")


def text_key(record: Record) -> int:
    """Hash the text of a record: the same for words and for their text, and for both directions of translation."""
    if isinstance(record, Bitext):
        low, high = sorted(side_keys(record))
        return _hash(low.to_bytes(8) + high.to_bytes(8))
    if isinstance(record, Pair | Choices | Question):
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
) -> _Seen:
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
    if (stored := _read_stored(path)) is None:
        seen = _look(use, tokenizer, max_length, tokenized)
        _store(path, seen)
        return seen
    return _restore(stored, use)


def _store(path: Path, seen: _Seen) -> None:
    """Store the statistics of a corpus: a checksum, a line of JSON, and the hashes of its texts."""
    arrays = (seen.hashes_N, *seen.sides)
    about = {"facts": asdict(seen.facts), "first_label": seen.first_label, "arrays": len(arrays)}
    content = b"".join([json.dumps(about).encode(), b"\n", *(array_N.tobytes() for array_N in arrays)])
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as partial:
        partial.write_bytes(zlib.crc32(content).to_bytes(4) + content)


def _read_stored(path: Path) -> bytes | None:
    """Read what `_store` wrote; nothing if it is not there or damaged, since the corpus can be read again."""
    stored = path.read_bytes() if path.exists() else b""
    return stored[4:] if stored and stored[:4] == zlib.crc32(stored[4:]).to_bytes(4) else None


def _restore(stored: bytes, use: CorpusRole) -> _Seen:
    line, _, rest = stored.partition(b"\n")
    about = json.loads(line)
    facts, corpus = about["facts"], use.corpus
    facts |= {key: facts[key] and Lengths(**facts[key]) for key in ("words", "tokens")}
    facts |= {"role": use.role, "licence": corpus.licence, "non_commercial": corpus.non_commercial}
    hashes_N, *sides = np.split(np.frombuffer(rest, dtype=np.uint64), about["arrays"])
    texts_N = np.sort(np.concatenate(sides)) if sides else hashes_N
    return _Seen(use, CorpusStats(**facts), hashes_N, tuple(sides), texts_N, about["first_label"])


def _look(
    use: CorpusRole, tokenizer: "Tokenizer | None", max_length: int | None, tokenized: int | None = None
) -> _Seen:
    """Read one corpus."""
    if use.task not in KINDS:
        raise DataError(use.corpus.name, None, f"no check for {use.task!r}. {suggest(use.task, KINDS)}")
    kind = KINDS[use.task]
    hashes, words, lengths = array("Q"), array("I"), array("I")
    sides = (array("Q"), array("Q"))
    labels: Counter[str] = Counter()
    first_label: str | None = None
    empty = unknown = 0
    records = use.corpus.records(kind, direction=use.direction)
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
            first_label = first_label or next(iter(labels), None)
        chosen = batch if tokenized is None else batch[: max(0, tokenized - len(hashes) + len(batch))]
        for ids in _cut(chosen, kind, tokenizer) if tokenizer and chosen else ():
            lengths.append(len(ids))
            unknown += list(ids).count(tokenizer.unk_id) if tokenizer else 0
    hashes_N, *sides_N = (np.sort(np.frombuffer(keys, dtype=np.uint64)) for keys in (hashes, *sides))
    room = (
        np.inf if tokenizer is None or max_length is None else max_length - tokenizer.num_special(pair=kind in _PAIRS)
    )
    corpus = use.corpus
    facts = CorpusStats(
        name=corpus.name, task=use.task, language=use.language, role=use.role, licence=corpus.licence,
        non_commercial=corpus.non_commercial, sha256=corpus.sha256, sentences=len(hashes), words=_lengths(words),
        tokens=_lengths(lengths) if tokenizer else None, labels=dict(labels.most_common()), unknown=unknown,
        too_long=int((np.frombuffer(lengths, dtype=np.uint32) > room).sum()) if lengths else 0, empty=empty,
        duplicates=int((hashes_N[1:] == hashes_N[:-1]).sum()),
        header=header_of(corpus.source, kind) if isinstance(corpus.source, Path | File) and len(hashes) else None,
    )  # fmt: skip
    if kind == "bitext":
        return _Seen(use, facts, hashes_N, tuple(sides_N), np.sort(np.concatenate(sides_N)), None)
    return _Seen(use, facts, hashes_N, (), hashes_N, first_label)


def _parts(record: Record) -> tuple[str, ...]:
    if isinstance(record, Pair):
        return record.first, record.second
    if isinstance(record, Bitext):
        return record.source, record.target
    if isinstance(record, Choices):
        return record.premise, record.question, *record.choices
    if isinstance(record, Question):
        return record.question, record.context
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


def _overlaps(seen: Sequence[_Seen]) -> Iterator[tuple[_Seen, _Seen, Overlap]]:
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


def _shared_slice(corpus: _Seen, other: _Seen) -> int:
    """Count the examples that two slices of the same file have in common, whatever is read of them."""
    corpora = corpus.use.corpus, other.use.corpus
    files = [item.source.path if isinstance(item.source, File) else item.source for item in corpora]
    if files[0] != files[1]:
        return 0
    one, two = sorted((_positions(corpus), _positions(other)), key=len)
    return sum(position in two for position in one)


def _positions(seen: _Seen) -> range | set[int]:
    """Return the positions of the examples of a slice in its file; a random choice is read again for them."""
    corpus, kind = seen.use.corpus, KINDS[seen.use.task]
    whole = range(corpus.start, corpus.start + seen.facts.sentences)
    return {n for n, _ in corpus.numbered(kind, direction=seen.use.direction)} if corpus.sample else whole


def _overlap_issues(overlaps: Sequence[tuple[_Seen, _Seen, Overlap]]) -> Iterator[Issue]:
    """Report overlaps that skew scores one by one, and the rest in one line."""
    few, as_text = [], []
    pairs = {(overlap.name, overlap.other): overlap.share for *_, overlap in overlaps if overlap.side is None}
    for corpus, other, overlap in sorted(overlaps, key=lambda entry: -entry[2].share):
        short = f"{overlap.name} in {overlap.other} ({overlap.count:,})"
        if overlap.side and overlap.share - pairs.get((overlap.name, overlap.other), 0) < MUCH_OVERLAP:
            continue  # a repeated pair is one issue, not three
        if corpus.use.task != other.use.task:
            as_text.append(short)
        elif overlap.share < MUCH_OVERLAP:
            few.append(short)
        else:
            leak = (corpus.use.role, other.use.role) == ("test", "train")
            what = f"{overlap.side}s" if overlap.side else "pairs" if corpus.sides else "sentences"
            same = leak and overlap.side is None and overlap.share >= ALMOST_ALL
            yield Issue(
                "serious" if leak and overlap.side != "source" else "check",
                f"{overlap.count:,} of {corpus.facts.sentences:,} {what} ({_percent(overlap.share)}) of {overlap.name} "
                f"are also in {overlap.other}: {'scores' if leak else 'the choice of the model'} will be skewed.",
                "test-in-train" if same else None,
            )
    if as_text:
        yield Issue("note", f"sentences whose text is seen in another task: {_some(as_text)}.")
    if few:
        yield Issue("note", f"a few sentences (below {_percent(MUCH_OVERLAP)}) recur: {_some(few)}.")


def _language_issues(seen: Sequence[_Seen]) -> Iterator[Issue]:
    """Find corpora whose collection says that they are of another language than their condition."""
    for corpus in seen:
        use, stated = corpus.use, corpus.use.corpus.language
        found, wanted = iso3(stated or ""), [iso3(code) for code in use.language.split("/")]
        if found is None or None in wanted or any(_may_be(found, code) for code in wanted):
            continue
        certain = {found, *wanted} <= set(ISO3.values())
        yield Issue(
            "serious" if certain else "check",
            f"data.{use.role}.{use.task}/{use.language}: {use.corpus.name} is of another language, {stated!r}.",
            "wrong-language" if certain else None,
        )


def _same_language_issues(languages: Sequence[str]) -> Iterator[Issue]:
    """Find two codes of one language, such as ``zh`` and ``zho``; codes with a script or a region are left out."""
    plain = [code for code in languages if re.fullmatch("[a-z]{2,3}", code)]
    for number, code in enumerate(plain):
        for other in plain[:number]:
            if len(code) != len(other) and iso3(code) == iso3(other):
                yield Issue(
                    "serious",
                    f"languages: {other!r} and {code!r} are codes of the same language, which would be trained as two. "
                    "Use one of them.",
                    "same-language",
                )


def _may_be(found: str, wanted: str | None) -> bool:
    return found == wanted or any({found, wanted} <= group for group in _GROUPS)


def _label_issues(seen: Sequence[_Seen], known_labels: Mapping[str, Collection[str]]) -> Iterator[Issue]:
    """Find labels that cannot be learned, are missing, or are all alike."""
    learned = defaultdict(set, {task: {_scored(label, task) for label in known_labels[task]} for task in known_labels})
    for corpus in seen:
        if corpus.use.role == "train":
            learned[corpus.use.task] |= {_scored(label, corpus.use.task) for label in corpus.facts.labels}
    for task, (label, *others) in ((task, labels) for task, labels in learned.items() if labels):
        if not others:
            what = f"all training data of {task} have the same label, {label}: there is nothing to learn."
            yield Issue("serious", what, "one-label")
    for corpus in seen:
        labels, total, task = corpus.facts.labels, sum(corpus.facts.labels.values()), corpus.use.task
        new = [label for label in labels if learned[task] and _scored(label, task) not in learned[task]]
        if new and corpus.use.role != "train":
            share = _percent(sum(labels[label] for label in new) / total)
            yield Issue(
                "check",
                f"{corpus.facts.name} has labels that no {task} training corpus has ({share} of all): "
                f"{', '.join(new)}. They can never be predicted.",
            )
        if labels.get(UNLABELED):
            yield Issue(
                "serious", f"{labels[UNLABELED]:,} of {total:,} labels of {corpus.facts.name} are missing ('_')."
            )
        elif len(labels) == 1:
            yield Issue(
                "serious", f"{corpus.facts.name} has only one label, {next(iter(labels))}: is it labelled at all?"
            )


def _rare_label_issues(seen: Sequence[_Seen]) -> Iterator[Issue]:
    """Find labels that occur once in training, and labels of training that a test corpus lacks."""
    trained: dict[str, Counter[str]] = defaultdict(Counter)
    for corpus in seen:
        if corpus.use.role == "train":
            trained[corpus.use.task].update(_scored_counts(corpus))
    missing = []
    for task, counts in trained.items():
        once = [label for label, count in counts.items() if count == 1]
        if once and counts.total() >= ENOUGH_LABELS:
            yield Issue("note", f"labels that occur only once in all training corpora of {task}: {_some(once)}.")
        for corpus in (corpus for corpus in seen if corpus.use.task == task and corpus.use.role != "train"):
            present = _scored_counts(corpus)
            absent = [
                label for label, count in counts.items() if count >= COMMON * counts.total() and label not in present
            ]
            if absent and present.total() >= ENOUGH_LABELS:
                missing.append(f"{corpus.facts.name} ({', '.join(absent)})")
    if missing:
        yield Issue("note", f"labels that are common in training but never occur in: {_some(dict.fromkeys(missing))}.")


def _header_issues(seen: Sequence[_Seen]) -> Iterator[Issue]:
    """Report headers, and first lines that look like a header but were read as data."""
    for facts, first in ((corpus.facts, corpus.first_label) for corpus in seen):
        if facts.header:
            names = ", ".join(facts.header.split())
            yield Issue("note", f"the first line of {facts.name} is a header and is not read as data: {names}.")
        elif first and facts.labels[first] == 1 and sum(facts.labels.values()) >= ENOUGH_LABELS // 5:
            what = f"the first label of {facts.name}, {first!r}, occurs nowhere else: is the first line a header?"
            yield Issue("check", f"{what} Name the columns after #.")


def _scored_counts(corpus: _Seen) -> Counter[str]:
    """Count the labels of a corpus by the part that is scored."""
    counts: Counter[str] = Counter()
    for label, count in corpus.facts.labels.items():
        counts[_scored(label, corpus.use.task)] += count
    return counts


def _scored(label: str, task: str) -> str:
    """Return the part of a label that is scored: of relations, the part before the colon."""
    return label.partition(":")[0] if KINDS[task] == "tree" else label


def _corpus_issues(seen: Sequence[_Seen], max_length: int | None) -> Iterator[Issue]:
    long, repeated = [], []
    for facts in (corpus.facts for corpus in seen):
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
        yield Issue("note", f"sentences longer than {max_length} tokens: {_some(dict.fromkeys(long))}.")
    if repeated:
        yield Issue("note", f"repeated sentences: {_some(dict.fromkeys(repeated))}.")


def _unknown_issues(seen: Sequence[_Seen]) -> Iterator[Issue]:
    unknown, total = Counter[str](), Counter[str]()
    for corpus in seen:
        unknown[corpus.use.language] += corpus.facts.unknown
        total[corpus.use.language] += corpus.facts.tokens.total if corpus.facts.tokens else 0
    for language, count in unknown.items():
        if count > MANY_UNKNOWN * total[language]:
            share = _percent(count / total[language])
            yield Issue(
                "check", f"{share} of the tokens of {language} are unknown: characters are not in the vocabulary."
            )


def _licence_issues(seen: Sequence[_Seen]) -> Iterator[Issue]:
    names = dict.fromkeys(corpus.facts.name for corpus in seen if corpus.facts.non_commercial)
    if names:
        yield Issue("note", f"not for commercial use: {_some(names)}.")


def _some(things: Collection[str], limit: int = 8) -> str:
    """List the first few; the report has all."""
    more = f" and {len(things) - limit:,} more" if len(things) > limit else ""
    return ", ".join(list(things)[:limit]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"
