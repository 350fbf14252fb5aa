"""Choose example sentences, and predict them with each run.

Runs store no predictions. So the runs are loaded, one after another, to predict a few sentences of each task.
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
from polyloom.figures.trees import wrong_arcs
from polyloom.metrics.score import PERPLEXITY
from polyloom.report.sources import Source
from polyloom.tasks import TASKS
from polyloom.workflows.run import Run

READ = 20  # the example is chosen from so many sentences of a corpus
SHORT, LONG = 3, 25  # number of words of an example, if possible
T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    """A sentence with the predictions of the runs.

    Attributes:
        condition: Its task and language.
        corpus: Where the sentence is from.
        number: Its position in the corpus, counted from 1.
        record: The sentence with its gold annotation.
        predictions: The runs' predictions, by name; a run that does not support the condition is left out.
    """

    condition: Condition
    corpus: str
    number: int
    record: Record
    predictions: Mapping[str, Any]


@dataclass
class Examples:
    """Examples, and errors that prevented others."""

    chosen: list[Example] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def spread(ordered: Sequence[T], count: int) -> list[T]:
    """Choose items at even distances, the first and the last among them; the middle one if it is only one."""
    if count >= len(ordered):
        return list(ordered)
    if count == 1:
        return [ordered[len(ordered) // 2]]
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def choose_conditions(source: Source, count: int) -> list[Condition]:
    """Choose conditions of every task, from the worst score to the best; in the recipe's order if there are no scores.

    Args:
        source: The run whose recipe and scores are used.
        count: How many conditions per task.
    """
    conditions = [Condition.parse(name) for name in getattr(source.recipe.data, source.split)]
    scored = source.matrix.results if source.matrix else {}
    chosen = []
    for task in dict.fromkeys(c.task for c in conditions if _has_predictions(c.task)):
        of_task = [c for c in conditions if c.task == task]
        scores = {c: scored[c].scores[0] for c in of_task if c in scored}
        ranked = sorted(scores, key=lambda c: scores[c].value * (1 if scores[c].metric.higher_is_better else -1))
        chosen += spread(ranked or of_task, count)
    return chosen


def _has_predictions(task: str) -> bool:
    """Tell whether a task predicts something to look at; language modelling is only scored by its perplexity."""
    return task in TASKS and TASKS[task].metrics[0] is not PERPLEXITY


def find_examples(
    sources: Sequence[Source], count: int, *, progress: Callable[[str], None] = lambda _: None
) -> Examples:
    """Predict the same sentences with every run; an error of one run is recorded and does not stop the others.

    Args:
        sources: The runs.
        count: How many sentences of each task.
        progress: Called with the name of each run before it is loaded.
    """
    examples = Examples()
    if not count:
        return examples
    first, records = sources[0], {}
    for condition in choose_conditions(first, count):
        try:
            records[condition] = _read(first, condition)
        except (PolyloomError, OSError) as error:
            examples.failures.append(f"{condition}: {error}")
    predictions: dict[str, dict[Condition, list[Any]]] = {}
    for source in sources:
        progress(source.name)
        try:
            predictions[source.name] = predict(source, records)
        except (PolyloomError, OSError) as error:
            examples.failures.append(f"{source.name}: {error}")
    for condition, sentences in records.items():
        by_run = {name: predicted[condition] for name, predicted in predictions.items() if condition in predicted}
        if by_run and sentences:
            place = choose_sentence(sentences, list(by_run.values()))
            corpus = ", ".join(getattr(first.recipe.data, first.split)[str(condition)])
            of_sentence = {name: predicted[place] for name, predicted in by_run.items()}
            examples.chosen.append(Example(condition, corpus, place + 1, sentences[place], of_sentence))
    return examples


def _read(source: Source, condition: Condition) -> list[Record]:
    data = source.recipe.data
    names = getattr(data, source.split)[str(condition)]
    corpora = (resolve(name, root=Path(data.root) if data.root else None) for name in names)
    return list(islice(chain.from_iterable(TASKS[condition.task].records(c, condition) for c in corpora), READ))


def predict(source: Source, records: Mapping[Condition, Sequence[Record]]) -> dict[Condition, list[Any]]:
    """Load a run and predict records of the conditions that it supports."""
    run, predictions = Run.load(source.path), {}
    for condition, sentences in records.items():
        try:
            predictions[condition] = list(run.predictor.predict(sentences, condition))
        except ConditionError:  # the table of scores says so
            continue
    return predictions


def choose_sentence(records: Sequence[Record], predictions: Sequence[Sequence[Any]]) -> int:
    """Choose the first sentence of handy length that any run got wrong; else the first of handy length, or of all."""
    handy = [i for i, record in enumerate(records) if SHORT <= _length(record) <= LONG] or list(range(len(records)))
    return next((i for i in handy if any(mistakes(records[i], of_run[i]) for of_run in predictions)), handy[0])


def mistakes(record: Record, predicted: Any) -> list[int]:
    """List the words that were predicted wrongly, counted from 0; of records with one label, 0 if it is wrong."""
    match record:
        case Tagged():
            return [i for i, (gold, tag) in enumerate(zip(record.tags, predicted, strict=True)) if gold != tag]
        case Tree():
            return wrong_arcs((record.heads, record.relations), (predicted.heads, predicted.relations))
        case Pair():
            return [] if predicted == record.label else [0]
        case Bitext():
            return [] if predicted == record.target else [0]
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
