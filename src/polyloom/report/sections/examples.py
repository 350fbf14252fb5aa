"""Examples: a few sentences of each task with the predictions of every run beside the gold annotation.

Runs store no predictions. So the runs are loaded, one after another, to predict the sentences that are shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from markupsafe import Markup

from polyloom.conditions import Condition
from polyloom.config.build import find_corpora
from polyloom.data.records import Record
from polyloom.errors import ConditionError, PolyloomError
from polyloom.figures.trees import draw_tree
from polyloom.inference.generate import continue_prompts
from polyloom.inference.predictor import Predictor
from polyloom.loading import load_predictor
from polyloom.metrics.bleu import chrf_statistics
from polyloom.metrics.score import CHRF
from polyloom.report.elements import Section
from polyloom.report.sources import Source
from polyloom.tasks import TASKS, Task
from polyloom.tasks.lm import CausalLm

READ = 20  # the example is chosen from so many sentences of a corpus
SHORT, LONG = 3, 25  # number of words of an example, if possible
LETTERS = 400  # of a text that is continued from its middle on
NEW_TOKENS = 40  # that a run continues it with, at most
MESSAGES = 4  # of a conversation that are shown
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
    first, data = sources[0], sources[0].recipe.data
    corpora = getattr(data, first.split)
    records: dict[Condition, list[Record]] = {}
    for condition in choose_conditions(first, count):
        task = TASKS[condition.task]
        try:
            named = find_corpora(data, corpora[str(condition)], check=first.access.require)
            sentences = list(islice(chain.from_iterable(task.records(c, condition) for c in named), READ))
            # No continuation is a mistake, so those behind the first handy record are never shown.
            if issubclass(task, CausalLm) and sentences:
                sentences = sentences[: choose_sentence(task, sentences, []) + 1]
            records[condition] = sentences
        except (PolyloomError, OSError) as error:
            examples.failures.append(f"{condition}: {error}")

    # One run after another, so that only one model is in memory at a time.
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
            of_sentence = {name: predicted[place] for name, predicted in by_run.items()}
            corpus = ", ".join(corpora[str(condition)])
            examples.chosen.append(Example(condition, corpus, place + 1, sentences[place], of_sentence))
    return examples


def choose_conditions(source: Source, count: int) -> list[Condition]:
    """Choose conditions of every task, from the worst score to the best; in the recipe's order if there are no scores.

    Args:
        source: The run whose recipe and scores are used.
        count: How many conditions per task.
    """
    conditions = [Condition.parse(name) for name in getattr(source.recipe.data, source.split)]
    scored = source.matrix.results if source.matrix else {}
    chosen = []
    for task in dict.fromkeys(condition.task for condition in conditions):
        # Tasks such as masked language modelling predict nothing to look at.
        if task not in TASKS or not (TASKS[task].formats() or issubclass(TASKS[task], CausalLm)):
            continue
        of_task = [c for c in conditions if c.task == task]
        scores = {c: scored[c].scores[0] for c in of_task if c in scored}
        ranked = sorted(scores, key=lambda c: scores[c].value * (1 if scores[c].metric.higher_is_better else -1))
        chosen += spread(ranked or of_task, count)
    return chosen


def spread(ordered: Sequence[T], count: int) -> list[T]:
    """Choose items at even distances, the first and the last among them; the middle one if it is only one."""
    if count >= len(ordered):
        return list(ordered)
    if count == 1:
        return [ordered[len(ordered) // 2]]
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


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
    """Continue the openings of records by greedy search."""
    predictor.model.method.require_supported(condition)
    new = min(NEW_TOKENS, predictor.max_length // 2)
    prompts = []
    for record in records:
        opening, _ = task.opening(record, letters=LETTERS)
        tokens = task.prompt_tokens(opening, predictor.tokenizer)
        prompts.append((condition, tokens[new - predictor.max_length :]))  # of a long one the model reads the end
    return [predictor.tokenizer.decode(ids) for ids in continue_prompts(predictor, prompts, max_new_tokens=new)]


def choose_sentence(task: type[Task], records: Sequence[Record], predictions: Sequence[Sequence[Any]]) -> int:
    """Choose the first sentence of handy length that any run got wrong; else the first of handy length, or of all."""
    handy = []
    for i, record in enumerate(records):
        if (words := getattr(record, "words", None)) is not None:
            length = len(words)
        else:  # not every language has spaces between words, so no text is too short
            length = max(SHORT, sum(len(text.split()) for _, text in texts(record)))
        if SHORT <= length <= LONG:
            handy.append(i)
    handy = handy or list(range(len(records)))
    for place in handy:
        if any(task.mistakes(records[place], of_run[place]) for of_run in predictions):
            return place
    return handy[0]


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


def examples_section(examples: Examples, count: int) -> Section:
    """Build the section with examples, task by task.

    Args:
        examples: What to show.
        count: How many per task the report was to have.
    """
    tasks: dict[str, list[dict[str, Any]]] = {}
    for example in examples.chosen:
        task = TASKS[example.condition.task]
        data: dict[str, Any] = {
            "condition": example.condition, "number": example.number, "corpus": example.corpus, "runs": [], "cards": [],
        }  # fmt: skip
        if issubclass(task, CausalLm):
            data["cards"] = _continuations(task, example)
        elif task.record_kind().display == "text":
            data["cards"] = _translations(example.record, example.predictions)
        else:
            data["runs"] = [_predicted(name, example, predicted) for name, predicted in example.predictions.items()]
        tasks.setdefault(example.condition.task, []).append(data)
    rule = {"read": READ, "short": SHORT, "long": LONG}
    return Section("examples", "Examples", {"tasks": tasks, "count": count, "failures": examples.failures, **rule})


def _predicted(name: str, example: Example, predicted: Any) -> dict[str, Any]:
    """Show a run's prediction of a record that is tagged, parsed or labelled."""
    record: Any = example.record
    task = TASKS[example.condition.task]
    kind = task.record_kind()
    wrong = task.mistakes(record, predicted)
    data: dict[str, Any] = {"name": name, "kind": kind.display}
    count = len(record.words) if kind.display in ("tags", "tree") else 1
    if kind.display == "tags":
        data["words"] = list(zip(record.words, record.tags, predicted, strict=True))
    elif kind.display == "tree":
        data["label"] = f"Tree of {name}: {example.condition}, sentence {example.number}"
        data["svg"] = Markup(draw_tree(record.words, record, predicted))  # noqa: S704 - escaped by ElementTree
        # The wrong arcs in words: the word, relation and head as predicted, relation and head as they should be.
        heads = ["(root)", *record.words]  # heads are counted from 1
        data["arcs"] = [
            (
                record.words[i], predicted.relations[i], heads[int(predicted.heads[i])],
                record.relations[i], heads[record.heads[i]],
            )
            for i in wrong
        ]  # fmt: skip
    else:
        label = kind.to_line(task.prediction(record, predicted, None)) or "(empty)"
        data |= {"kind": "label", "title": kind.display.capitalize(), "texts": texts(record), "label": label}
        data |= {"gold": kind.gold(record), "wrong": bool(wrong)}
    verdict = f"{len(wrong)} of {count} wrong" if wrong else "all correct" if count > 1 else "correct"
    return data | {"verdict": verdict}


def _translations(record: Any, predictions: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """List source, reference and each run's text: name, remark, text."""
    cards = [*((name, "", text) for name, text in texts(record)), ("Reference", "", record.target)]
    for name, predicted in predictions.items():
        if predicted == record.target:
            remark = "(as the reference)"
        else:
            try:
                chrf = float(CHRF.value(chrf_statistics([record.target], [predicted]).sum(0)))
                remark = f"(chrF {chrf:.0f})"
            except PolyloomError:  # sacrebleu is in an extra, and this is no evaluation
                remark = ""
        cards.append((name, remark, predicted or "(empty)"))
    return cards


def _continuations(task: type[CausalLm], example: Example) -> list[tuple[str, str, str]]:
    """List the prompt, or the last messages before an answer, what follows in the corpus, and what each run writes."""
    opening, following = task.opening(example.record, letters=LETTERS)
    messages = [{"role": "prompt", "content": opening}] if isinstance(opening, str) else opening
    cards = [(message["role"].capitalize(), message["content"]) for message in messages[-MESSAGES:]]
    listed = [*cards, ("Reference", following), *example.predictions.items()]
    return [(name, "", (text if len(text) <= LETTERS else f"{text[:LETTERS]}…") or "(empty)") for name, text in listed]
