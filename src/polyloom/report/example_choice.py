"""Choose example sentences, and predict them with each run.

Runs store no predictions. So the runs are loaded, one after another, to predict a few sentences of each task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from polyloom.conditions import Condition
from polyloom.config.build import find_corpora
from polyloom.data.records import Record
from polyloom.errors import ConditionError, PolyloomError
from polyloom.inference.generate import continue_prompts
from polyloom.inference.predictor import Predictor
from polyloom.loading import load_predictor
from polyloom.report.sources import Source
from polyloom.tasks import TASKS, Task
from polyloom.tasks.lm import CausalLm

READ = 20  # the example is chosen from so many sentences of a corpus
SHORT, LONG = 3, 25  # number of words of an example, if possible
LETTERS = 400  # of a text that is continued from its middle on
NEW_TOKENS = 40  # that a run continues it with, at most
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
    """Return whether a task predicts something to look at."""
    return task in TASKS and (bool(TASKS[task].formats()) or issubclass(TASKS[task], CausalLm))


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
            place = choose_sentence(TASKS[condition.task], sentences, list(by_run.values()))
            corpus = ", ".join(getattr(first.recipe.data, first.split)[str(condition)])
            of_sentence = {name: predicted[place] for name, predicted in by_run.items()}
            examples.chosen.append(Example(condition, corpus, place + 1, sentences[place], of_sentence))
    return examples


def _read(source: Source, condition: Condition) -> list[Record]:
    data, task = source.recipe.data, TASKS[condition.task]
    corpora = find_corpora(data, getattr(data, source.split)[str(condition)], check=source.access.require)
    records = list(islice(chain.from_iterable(task.records(c, condition) for c in corpora), READ))
    # No continuation is a mistake, so those behind the first handy record are never shown.
    return records[: choose_sentence(task, records, []) + 1] if issubclass(task, CausalLm) and records else records


def predict(source: Source, records: Mapping[Condition, Sequence[Record]]) -> dict[Condition, list[Any]]:
    """Load a run and predict records of the conditions that it supports."""
    predictor, predictions = load_predictor(source.path), {}
    for condition, sentences in records.items():
        try:
            task = predictor.model.task(condition.task)
            if isinstance(task, CausalLm):
                predictions[condition] = _continue(predictor, task, sentences, condition)
            else:
                predictions[condition] = list(predictor.predict(sentences, condition))
        except ConditionError:  # the table of scores says so
            continue
    return predictions


def _continue(predictor: Predictor, task: CausalLm, records: Sequence[Record], condition: Condition) -> list[str]:
    """Continue the openings of records, by greedy search; of a long one the model reads the end."""
    predictor.model.method.require_supported(condition)
    new = min(NEW_TOKENS, predictor.max_length // 2)
    openings = [task.opening(record, letters=LETTERS)[0] for record in records]
    prompts = [task.prompt_tokens(opening, predictor.tokenizer)[new - predictor.max_length :] for opening in openings]
    written = continue_prompts(predictor, [(condition, tokens) for tokens in prompts], max_new_tokens=new)
    return [predictor.tokenizer.decode(ids) for ids in written]


def choose_sentence(task: type[Task], records: Sequence[Record], predictions: Sequence[Sequence[Any]]) -> int:
    """Choose the first sentence of handy length that any run got wrong; else the first of handy length, or of all."""
    handy = [i for i, record in enumerate(records) if SHORT <= _length(record) <= LONG] or list(range(len(records)))
    return next((i for i in handy if any(task.mistakes(records[i], of_run[i]) for of_run in predictions)), handy[0])


def _length(record: Record) -> int:
    """Count the words of a record: of sentences exactly, of texts between spaces, which not every language has."""
    words = getattr(record, "words", None)
    return len(words) if words is not None else max(SHORT, sum(len(text.split()) for _, text in texts(record)))


def texts(record: Record) -> list[tuple[str, str]]:
    """List the texts of a record, with their names; labels are left out."""
    assert is_dataclass(record)
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    listed = [
        (name.capitalize(), value)
        for name, value in values.items()
        if isinstance(value, str) and name not in ("label", "target")
    ]
    return listed + [(f"Choice {number}", text) for number, text in enumerate(values.get("choices", ()))]
