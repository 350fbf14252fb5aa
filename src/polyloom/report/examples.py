"""Sentences to look at: which ones are chosen, and what the runs answer.

No answers are stored with a run, so the runs are asked again, one after another, for a few sentences of each task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.records import Bitext, Pair, Record, Tagged, Tree
from polyloom.errors import ConditionError, PolyloomError
from polyloom.loading import load_predictor
from polyloom.report.sources import Source
from polyloom.report.trees import wrong_arcs
from polyloom.tasks import TASKS

READ = 20  # sentences of a corpus that one is chosen from
SHORT, LONG = 3, 25  # words of a sentence that is worth and easy looking at
T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    """A sentence with the answers of the runs.

    Attributes:
        condition: What was asked.
        corpus: Where the sentence is from.
        number: Which of its sentences it is, counted from 1.
        record: The sentence with the right answer.
        answers: What the runs said, by their names; a run that cannot serve the condition says nothing.
    """

    condition: Condition
    corpus: str
    number: int
    record: Record
    answers: Mapping[str, Any]


@dataclass
class Examples:
    """Examples, and what kept others from being there."""

    chosen: list[Example] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def spread(ordered: Sequence[T], count: int) -> list[T]:
    """So many of a sequence, evenly: the first, the last, those in between; the middle one if it is one."""
    if count >= len(ordered):
        return list(ordered)
    if count == 1:
        return [ordered[len(ordered) // 2]]
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def choose_conditions(source: Source, count: int) -> list[Condition]:
    """For every task so many conditions, from the worst score to the best; as the recipe has them where none is."""
    asked = [Condition.parse(name) for name in getattr(source.recipe.data, source.split)]
    scored = source.matrix.results if source.matrix else {}
    chosen = []
    for task in dict.fromkeys(c.task for c in asked if c.task in TASKS and c.task != "mlm"):
        own = [c for c in asked if c.task == task]
        known = {c: scored[c].scores[0] for c in own if c in scored}
        ordered = sorted(known, key=lambda c: known[c].value * (1 if known[c].metric.higher_is_better else -1))
        chosen += spread(ordered or own, count)
    return chosen


def find_examples(
    sources: Sequence[Source], count: int, *, progress: Callable[[str], None] = lambda _: None
) -> Examples:
    """Ask every run for the same sentences; what fails for one run is said and stops no other."""
    found = Examples()
    if not count:
        return found
    first, records = sources[0], {}
    for condition in choose_conditions(first, count):
        try:
            records[condition] = _read(first, condition)
        except (PolyloomError, OSError) as error:
            found.failures.append(f"{condition}: {error}")
    answers: dict[str, dict[Condition, list[Any]]] = {}
    for source in sources:
        progress(source.name)
        try:
            answers[source.name] = ask(source, records)
        except (PolyloomError, OSError) as error:
            found.failures.append(f"{source.name}: {error}")
    for condition, some in records.items():
        said = {name: own[condition] for name, own in answers.items() if condition in own}
        if said and some:
            place = choose_sentence(some, list(said.values()))
            corpus = ", ".join(getattr(first.recipe.data, first.split)[str(condition)])
            answered = {name: own[place] for name, own in said.items()}
            found.chosen.append(Example(condition, corpus, place + 1, some[place], answered))
    return found


def _read(source: Source, condition: Condition) -> list[Record]:
    data = source.recipe.data
    names = getattr(data, source.split)[str(condition)]
    corpora = (resolve(name, root=Path(data.root) if data.root else None) for name in names)
    return list(islice(chain.from_iterable(TASKS[condition.task].records(c, condition) for c in corpora), READ))


def ask(source: Source, records: Mapping[Condition, Sequence[Record]]) -> dict[Condition, list[Any]]:
    """What a run answers to records of the conditions that it serves; it is in memory only meanwhile."""
    predictor, found = load_predictor(source.path), {}
    for condition, some in records.items():
        try:
            found[condition] = list(predictor.predict(some, condition))
        except ConditionError:  # which the table of scores tells
            continue
    return found


def choose_sentence(records: Sequence[Record], answers: Sequence[Sequence[Any]]) -> int:
    """The first sentence of a handy length that any of the runs got wrong; else the first of such length, or of all."""
    handy = [i for i, record in enumerate(records) if SHORT <= _length(record) <= LONG] or list(range(len(records)))
    return next((i for i in handy if any(mistakes(records[i], own[i]) for own in answers)), handy[0])


def mistakes(record: Record, answer: Any) -> list[int]:
    """Which words were answered wrongly, counted from 0; of what has one answer, the only one."""
    match record:
        case Tagged():
            return [i for i, (one, other) in enumerate(zip(record.tags, answer, strict=True)) if one != other]
        case Tree():
            return wrong_arcs((record.heads, record.relations), (answer.heads, answer.relations))
        case Pair():
            return [] if answer == record.label else [0]
        case Bitext():
            return [] if answer == record.target else [0]
    return []


def _length(record: Record) -> int:
    match record:
        case Tagged() | Tree():
            return len(record.words)
        case Pair():
            return len(record.first.split()) + len(record.second.split())
        case Bitext():
            return max(SHORT, len(record.source.split()))  # not every language has spaces
    return 0
