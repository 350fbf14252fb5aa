"""Check corpora before training: find leaks between them, wrong languages, missing labels and other issues."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyloom.data.catalog import KINDS
from polyloom.data.corpus_stats import CorpusRole, CorpusStats, Hashes, Role, ScannedCorpus, scan_corpus
from polyloom.data.typology import ISO3, iso3
from polyloom.errors import PolyloomError
from polyloom.io.files import File

if TYPE_CHECKING:
    from polyloom.data.tokenization.tokenizer import Tokenizer  # imports transformers

MUCH_OVERLAP = 0.01  # short sentences recur naturally; above this share, scores are skewed
ALMOST_ALL = 0.9  # of a test corpus in a training corpus: certainly a mistake; wikiann:bn/test has 67 %
MANY_UNKNOWN = 0.01
MANY_DUPLICATES = 0.05
MANY_LONG = 0.01
COMMON = 0.01  # share of the training labels from which on a label is missed in a test corpus
ENOUGH_LABELS = 100  # with fewer, rare and missing labels mean nothing
UNLABELED = "_"  # how CoNLL-U marks a missing value
_GROUPS = ({"nob", "nno"}, {"hbs", "srp", "hrv", "bos"})  # corpora often have the code of another one of the group
Severity = Literal["serious", "check", "note"]
Mistake = Literal["test-in-train", "wrong-language", "same-language", "one-label"]  # what `data.allow` lists


@dataclass(frozen=True)
class Issue:
    """An issue that the user should look at."""

    severity: Severity
    what: str
    mistake: Mistake | None = None
    """Name of a certain mistake, which training refuses unless `data.allow` lists it."""


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
        cache: Directory where the statistics of corpora are stored for the next check. Default: none.
        require_tests: Whether a test corpus that cannot be read is an error. Otherwise it is an issue.
        progress: Called with the name of each corpus before it is read.
    """
    corpora, unread = [], []
    for use in uses:
        if progress:
            progress(use.corpus.name)
        try:
            corpora.append(scan_corpus(use, tokenizer, max_length, tokenized, cache))
        except PolyloomError as error:
            if require_tests or use.role != "test":
                raise
            unread.append(unread_test(str(error)))
    overlaps = list(_overlaps(corpora))
    issues = [
        *_overlap_issues(overlaps),
        *_language_issues(corpora),
        *_same_language_issues(languages),
        *_label_issues(corpora, known_labels or {}),
        *_rare_label_issues(corpora),
        *_header_issues(corpora),
        *_sentence_issues(corpora, max_length),
        *_unknown_token_issues(corpora),
        *_licence_issues(corpora),
        *unread,
    ]
    order: list[Severity] = ["serious", "check", "note"]
    unique = dict.fromkeys(issues)  # one file may be used for two directions
    return Report(
        tuple(corpus.stats for corpus in corpora),
        tuple(overlap for _, _, overlap in overlaps),
        tuple(sorted(unique, key=lambda issue: order.index(issue.severity))),
    )


def unread_test(error: str) -> Issue:
    """Return the issue of a test corpus that cannot be read."""
    return Issue("check", f"a test corpus cannot be read, so it is not compared with the training data: {error}")


def _overlaps(corpora: Sequence[ScannedCorpus]) -> Iterator[tuple[ScannedCorpus, ScannedCorpus, Overlap]]:
    """Compare test corpora with training and validation corpora, and validation corpora with training corpora."""
    compared: Mapping[Role, tuple[Role, ...]] = {"train": (), "validation": ("train",), "test": ("train", "validation")}
    for corpus in corpora:
        for other in corpora:
            if other.use.role not in compared[corpus.use.role]:
                continue
            # Bitext is compared pair by pair; a sentence of another kind also with both sides of bitext.
            records_N = other.hashes_N if corpus.sides else other.texts_N
            whole = max(_num_shared(corpus.hashes_N, records_N), _num_shared_positions(corpus, other))
            counts: list[tuple[str | None, int]] = [(None, whole)]
            for side, hashes_N in zip(("source", "target"), corpus.sides, strict=False):
                counts.append((side, _num_shared(hashes_N, other.texts_N)))
            for name, count in counts:
                if count:
                    share = count / corpus.stats.sentences
                    yield corpus, other, Overlap(corpus.stats.name, other.stats.name, count, share, name)


def _num_shared(hashes_N: Hashes, other_N: Hashes) -> int:
    """Count the hashes of a corpus that are in another; both are sorted."""
    if not len(hashes_N) or not len(other_N):
        return 0
    # Binary search instead of sets: a set of Python integers takes some ten times the memory of the array.
    places_N = np.searchsorted(other_N, hashes_N).clip(max=len(other_N) - 1)
    return int((other_N[places_N] == hashes_N).sum())


def _num_shared_positions(corpus: ScannedCorpus, other: ScannedCorpus) -> int:
    """Count the examples that two slices of the same file have in common.

    Hashes may miss them: as raw text and as words, a sentence with multiword tokens has different hashes.
    """
    sources = [scanned.use.corpus.source for scanned in (corpus, other)]
    files = [source.path if isinstance(source, File) else source for source in sources]
    if files[0] != files[1]:
        return 0
    positions: list[range | set[int]] = []
    for scanned in (corpus, other):
        start, positions_N = scanned.use.corpus.start, scanned.positions_N
        # Membership in a range costs nothing, so only random choices become sets.
        whole_range = range(start, start + scanned.stats.sentences)
        positions.append(whole_range if positions_N is None else set(positions_N.tolist()))
    few, many = sorted(positions, key=len)
    return sum(position in many for position in few)


def _overlap_issues(overlaps: Sequence[tuple[ScannedCorpus, ScannedCorpus, Overlap]]) -> Iterator[Issue]:
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
            # A target that was seen in training can be recited, in whichever direction; a source alone cannot.
            is_leak = (corpus.use.role, other.use.role) == ("test", "train")
            is_same = is_leak and overlap.side is None and overlap.share >= ALMOST_ALL
            what = f"{overlap.side}s" if overlap.side else "pairs" if corpus.sides else "sentences"
            yield Issue(
                "serious" if is_leak and overlap.side != "source" else "check",
                f"{overlap.count:,} of {corpus.stats.sentences:,} {what} ({_percent(overlap.share)}) of {overlap.name} "
                f"are also in {overlap.other}: {'scores' if is_leak else 'the choice of the model'} will be skewed.",
                "test-in-train" if is_same else None,
            )
    if as_text:
        yield Issue("note", f"sentences whose text is seen in another task: {_listed(as_text)}.")
    if few:
        yield Issue("note", f"a few sentences (below {_percent(MUCH_OVERLAP)}) recur: {_listed(few)}.")


def _language_issues(corpora: Sequence[ScannedCorpus]) -> Iterator[Issue]:
    """Find corpora whose collection says that they are of another language than their condition."""
    for use in (corpus.use for corpus in corpora):
        stated, expected = iso3(use.corpus.language or ""), [iso3(code) for code in use.language.split("/")]
        if stated is None or None in expected or stated in expected:
            continue
        if any({stated, code} <= group for code in expected for group in _GROUPS):
            continue
        # A code that no table has may be a name of the user's own, so that the corpus may be right.
        is_certain = {stated, *expected} <= set(ISO3.values())
        yield Issue(
            "serious" if is_certain else "check",
            f"data.{use.role}.{use.task}/{use.language}: {use.corpus.name} is of another language, "
            f"{use.corpus.language!r}.",
            "wrong-language" if is_certain else None,
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


def _label_issues(corpora: Sequence[ScannedCorpus], known_labels: Mapping[str, Collection[str]]) -> Iterator[Issue]:
    """Find labels that cannot be learned, are missing, or are all alike."""
    # By task, not by language: a label that a training corpus of any language has can be predicted in all of them.
    learned: dict[str, set[str]] = defaultdict(set)
    for task, labels in known_labels.items():
        learned[task] |= {_scored(label, task) for label in labels}
    for corpus in corpora:
        if corpus.use.role == "train":
            learned[corpus.use.task] |= {_scored(label, corpus.use.task) for label in corpus.stats.labels}
    for task, labels in learned.items():
        if len(labels) == 1:
            what = f"all training data of {task} have the same label, {min(labels)}: there is nothing to learn."
            yield Issue("serious", what, "one-label")

    for corpus in corpora:
        name, counts, task = corpus.stats.name, corpus.stats.labels, corpus.use.task
        total = sum(counts.values())
        # Nothing is learned for a task that is only tested, or whose training data are not labels (raw text).
        new = [label for label in counts if learned[task] and _scored(label, task) not in learned[task]]
        if new and corpus.use.role != "train":
            share = _percent(sum(counts[label] for label in new) / total)
            yield Issue(
                "check",
                f"{name} has labels that no {task} training corpus has ({share} of all): "
                f"{', '.join(new)}. They can never be predicted.",
            )
        if counts.get(UNLABELED):
            yield Issue("serious", f"{counts[UNLABELED]:,} of {total:,} labels of {name} are missing ('_').")
        elif len(counts) == 1:
            yield Issue("serious", f"{name} has only one label, {min(counts)}: is it labelled at all?")


def _rare_label_issues(corpora: Sequence[ScannedCorpus]) -> Iterator[Issue]:
    """Find labels that occur once in training, and labels of training that a test corpus lacks."""
    trained: dict[str, Counter[str]] = defaultdict(Counter)
    for corpus in corpora:
        if corpus.use.role == "train":
            trained[corpus.use.task].update(_scored_counts(corpus))
    missing = []
    for task, counts in trained.items():
        once = [label for label, count in counts.items() if count == 1]
        if once and counts.total() >= ENOUGH_LABELS:
            yield Issue("note", f"labels that occur only once in all training corpora of {task}: {_listed(once)}.")
        common = [label for label, count in counts.items() if count >= COMMON * counts.total()]
        for corpus in (corpus for corpus in corpora if corpus.use.task == task and corpus.use.role != "train"):
            present = _scored_counts(corpus)
            absent = [label for label in common if label not in present]
            if absent and present.total() >= ENOUGH_LABELS:
                missing.append(f"{corpus.stats.name} ({', '.join(absent)})")
    if missing:
        yield Issue("note", f"labels that are common in training but never occur in: {_listed(missing)}.")


def _scored_counts(corpus: ScannedCorpus) -> Counter[str]:
    """Count the labels of a corpus by the part that is scored."""
    counts: Counter[str] = Counter()
    for label, count in corpus.stats.labels.items():
        counts[_scored(label, corpus.use.task)] += count
    return counts


def _scored(label: str, task: str) -> str:
    """Return the part of a label that is scored: of relations, the part before the colon."""
    return label.partition(":")[0] if KINDS[task] == "tree" else label


def _header_issues(corpora: Sequence[ScannedCorpus]) -> Iterator[Issue]:
    """Report headers, and first lines that look like a header but were read as data."""
    for corpus in corpora:
        stats, first = corpus.stats, corpus.first_label
        if stats.header:
            names = ", ".join(stats.header.split())
            yield Issue("note", f"the first line of {stats.name} is a header and is not read as data: {names}.")
        elif first and stats.labels[first] == 1 and sum(stats.labels.values()) >= ENOUGH_LABELS // 5:
            # A header that was read as data leaves a label such as `tag`, which no other line has.
            what = f"the first label of {stats.name}, {first!r}, occurs nowhere else: is the first line a header?"
            yield Issue("check", f"{what} Name the columns after #.")


def _sentence_issues(corpora: Sequence[ScannedCorpus], max_length: int | None) -> Iterator[Issue]:
    """Find corpora without sentences, and sentences that are empty, too long or repeated."""
    long, repeated = [], []
    for stats in (corpus.stats for corpus in corpora):
        count = max(1, stats.sentences)
        if not stats.sentences:
            yield Issue("serious", f"{stats.name} has no sentences.")
        if stats.empty:
            yield Issue("check", f"{stats.empty:,} of {count:,} sentences of {stats.name} have an empty part.")
        if stats.too_long > MANY_LONG * count:
            long.append(f"{stats.name} ({_percent(stats.too_long / count)})")
        if stats.duplicates > MANY_DUPLICATES * count:
            repeated.append(f"{stats.name} ({_percent(stats.duplicates / count)})")
    if long:
        yield Issue("note", f"sentences longer than {max_length} tokens: {_listed(long)}.")
    if repeated:
        yield Issue("note", f"repeated sentences: {_listed(repeated)}.")


def _unknown_token_issues(corpora: Sequence[ScannedCorpus]) -> Iterator[Issue]:
    """Find languages whose script the vocabulary does not have, over all their corpora together."""
    unknown, total = Counter[str](), Counter[str]()
    for corpus in corpora:
        unknown[corpus.use.language] += corpus.stats.unknown
        total[corpus.use.language] += corpus.stats.tokens.total if corpus.stats.tokens else 0
    for language, count in unknown.items():
        if count > MANY_UNKNOWN * total[language]:
            share = _percent(count / total[language])
            what = f"{share} of the tokens of {language} are unknown: characters are not in the vocabulary."
            yield Issue("check", what)


def _licence_issues(corpora: Sequence[ScannedCorpus]) -> Iterator[Issue]:
    if names := [corpus.stats.name for corpus in corpora if corpus.stats.non_commercial]:
        yield Issue("note", f"not for commercial use: {_listed(names)}.")


def _listed(names: Iterable[str], limit: int = 8) -> str:
    """List the first few, each once; the report has all."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - limit:,} more" if len(unique) > limit else ""
    return ", ".join(unique[:limit]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"
