"""Find issues in what was counted in corpora: leaks, wrong languages, missing labels and others."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from polyloom.data.catalog import KINDS
from polyloom.data.typology import ISO3, iso3

if TYPE_CHECKING:
    from polyloom.data.check import Overlap, Seen

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
    """An issue that the user should look at.

    Attributes:
        severity: How serious it may be.
        what: A sentence.
        mistake: Name of a certain mistake, which training refuses unless `data.allow` lists it. Default: not certain.
    """

    severity: Severity
    what: str
    mistake: Mistake | None = None


def unread_test(error: str) -> Issue:
    """Return the issue of a test corpus that cannot be read."""
    return Issue("check", f"a test corpus cannot be read, so it is not compared with the training data: {error}")


def find_issues(
    seen: Sequence["Seen"],
    known_labels: Mapping[str, Collection[str]],
    *,
    languages: Sequence[str],
    max_length: int | None,
) -> Iterator[Issue]:
    """Find the issues of corpora that were read, except overlaps.

    Args:
        seen: The corpora.
        known_labels: Labels by task that the model was trained on before.
        languages: All languages of the recipe.
        max_length: Maximum length of an input in tokens.
    """
    yield from _language_issues(seen)
    yield from _same_language_issues(languages)
    yield from _label_issues(seen, known_labels)
    yield from _rare_label_issues(seen)
    yield from _header_issues(seen)
    yield from _corpus_issues(seen, max_length)
    yield from _unknown_issues(seen)
    yield from _licence_issues(seen)


def overlap_issues(overlaps: Sequence[tuple["Seen", "Seen", "Overlap"]]) -> Iterator[Issue]:
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


def _language_issues(seen: Sequence["Seen"]) -> Iterator[Issue]:
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


def _label_issues(seen: Sequence["Seen"], known_labels: Mapping[str, Collection[str]]) -> Iterator[Issue]:
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


def _rare_label_issues(seen: Sequence["Seen"]) -> Iterator[Issue]:
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


def _header_issues(seen: Sequence["Seen"]) -> Iterator[Issue]:
    """Report headers, and first lines that look like a header but were read as data."""
    for facts, first in ((corpus.facts, corpus.first_label) for corpus in seen):
        if facts.header:
            names = ", ".join(facts.header.split())
            yield Issue("note", f"the first line of {facts.name} is a header and is not read as data: {names}.")
        elif first and facts.labels[first] == 1 and sum(facts.labels.values()) >= ENOUGH_LABELS // 5:
            what = f"the first label of {facts.name}, {first!r}, occurs nowhere else: is the first line a header?"
            yield Issue("check", f"{what} Name the columns after #.")


def _scored_counts(corpus: "Seen") -> Counter[str]:
    """Count the labels of a corpus by the part that is scored."""
    counts: Counter[str] = Counter()
    for label, count in corpus.facts.labels.items():
        counts[_scored(label, corpus.use.task)] += count
    return counts


def _scored(label: str, task: str) -> str:
    """Return the part of a label that is scored: of relations, the part before the colon."""
    return label.partition(":")[0] if KINDS[task] == "tree" else label


def _corpus_issues(seen: Sequence["Seen"], max_length: int | None) -> Iterator[Issue]:
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


def _unknown_issues(seen: Sequence["Seen"]) -> Iterator[Issue]:
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


def _licence_issues(seen: Sequence["Seen"]) -> Iterator[Issue]:
    names = dict.fromkeys(corpus.facts.name for corpus in seen if corpus.facts.non_commercial)
    if names:
        yield Issue("note", f"not for commercial use: {_some(names)}.")


def _some(things: Collection[str], limit: int = 8) -> str:
    """List the first few; the report has all."""
    more = f" and {len(things) - limit:,} more" if len(things) > limit else ""
    return ", ".join(list(things)[:limit]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"
