"""Examples: tags under words, trees as arcs, texts with their label or answer, translations side by side."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from polyloom.data.records import Tree
from polyloom.errors import PolyloomError
from polyloom.figures.trees import draw_tree
from polyloom.metrics.bleu import chrf_statistics
from polyloom.metrics.score import CHRF
from polyloom.report.example_choice import LETTERS, LONG, READ, SHORT, Example, Examples, texts
from polyloom.report.templating import Section
from polyloom.tasks import TASKS
from polyloom.tasks.lm import CausalLm

MESSAGES = 4  # of a conversation that are shown


def examples_section(examples: Examples, count: int) -> Section:
    """Build the section with examples, task by task.

    Args:
        examples: What to show.
        count: How many per task were asked for.
    """
    tasks: dict[str, list[dict[str, Any]]] = {}
    for example in examples.chosen:
        tasks.setdefault(example.condition.task, []).append(_example(example))
    rule = {"read": READ, "short": SHORT, "long": LONG}
    return Section("examples", "Examples", {"tasks": tasks, "count": count, "failures": examples.failures, **rule})


def _example(example: Example) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "condition": example.condition, "number": example.number, "corpus": example.corpus, "runs": [], "cards": [],
    }  # fmt: skip
    task = TASKS[example.condition.task]
    if issubclass(task, CausalLm):
        shown["cards"] = _continuations(task, example)
    elif task.record_kind().display == "text":
        shown["cards"] = _texts(example.record, example.predictions)
    else:
        shown["runs"] = [_predicted(name, example, predicted) for name, predicted in example.predictions.items()]
    return shown


def _predicted(name: str, example: Example, predicted: Any) -> dict[str, Any]:
    record: Any = example.record
    task = TASKS[example.condition.task]
    kind = task.record_kind()
    wrong = task.mistakes(record, predicted)
    shown: dict[str, Any] = {"name": name, "kind": kind.display}
    count = len(record.words) if kind.display in ("tags", "tree") else 1
    if kind.display == "tags":
        shown["words"] = list(zip(record.words, record.tags, predicted, strict=True))
    elif kind.display == "tree":
        arcs = draw_tree(record.words, (record.heads, record.relations), (predicted.heads, predicted.relations))
        shown["label"] = f"Tree of {name}: {example.condition}, sentence {example.number}"
        shown["svg"] = Markup(arcs)  # noqa: S704 - escaped by ElementTree
        shown["arcs"] = _wrong_arcs(record, predicted, wrong)
    else:
        label = kind.to_line(task.prediction(record, predicted, None)) or "(empty)"
        shown |= {"kind": "label", "title": kind.display.capitalize(), "texts": texts(record), "label": label}
        shown |= {"gold": kind.gold(record), "wrong": bool(wrong)}
    verdict = f"{len(wrong)} of {count} wrong" if wrong else "all correct" if count > 1 else "correct"
    return shown | {"verdict": verdict}


def _wrong_arcs(record: Tree, predicted: Any, wrong: list[int]) -> list[tuple[str, str, str, str, str]]:
    """Put the wrong arcs in words: the word, then relation and head as predicted, then as they should be."""

    def head(position: int) -> str:
        return record.words[position - 1] if position else "(root)"

    return [
        (
            record.words[i],
            predicted.relations[i],
            head(int(predicted.heads[i])),
            record.relations[i],
            head(record.heads[i]),
        )
        for i in wrong
    ]  # fmt: skip


def _texts(record: Any, predictions: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """List source, reference and each run's text: name, remark, text."""
    cards = [*((name, "", text) for name, text in texts(record)), ("Reference", "", record.target)]
    return cards + [
        (name, _remark(record, predicted), predicted or "(empty)") for name, predicted in predictions.items()
    ]


def _continuations(task: type[CausalLm], example: Example) -> list[tuple[str, str, str]]:
    """List the prompt, or the last messages before an answer, what follows in the corpus, and what each run writes."""
    opening, following = task.opening(example.record, letters=LETTERS)
    messages = [{"role": "prompt", "content": opening}] if isinstance(opening, str) else opening
    cards = [(message["role"].capitalize(), message["content"]) for message in messages[-MESSAGES:]]
    listed = [*cards, ("Reference", following), *example.predictions.items()]
    return [(name, "", (text if len(text) <= LETTERS else f"{text[:LETTERS]}…") or "(empty)") for name, text in listed]


def _remark(record: Any, predicted: str) -> str:
    if predicted == record.target:
        return "(as the reference)"
    try:
        return f"(chrF {float(CHRF.value(chrf_statistics([record.target], [predicted]).sum(0))):.0f})"
    except PolyloomError:  # sacrebleu is in an extra, and this is no evaluation
        return ""
