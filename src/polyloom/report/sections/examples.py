"""Examples: tags under words, trees as arcs, pairs, translations side by side."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from polyloom.data.records import Bitext, Pair, Tagged, Tree
from polyloom.errors import PolyloomError
from polyloom.figures.trees import draw_tree
from polyloom.metrics.bleu import chrf_statistics
from polyloom.metrics.score import CHRF
from polyloom.report.example_choice import LONG, READ, SHORT, Example, Examples, mistakes
from polyloom.report.templating import Section


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
    if isinstance(example.record, Bitext):
        shown["cards"] = _translations(example.record, example.predictions)
    else:
        shown["runs"] = [_predicted(name, example, predicted) for name, predicted in example.predictions.items()]
    return shown


def _predicted(name: str, example: Example, predicted: Any) -> dict[str, Any]:
    record = example.record
    wrong = mistakes(record, predicted)
    shown: dict[str, Any] = {"name": name, "kind": None}
    count = 0
    match record:
        case Tagged():
            words = zip(record.words, record.tags, predicted, strict=True)
            count, shown = len(record.words), shown | {"kind": "tags", "words": list(words)}
        case Tree():
            arcs = draw_tree(record.words, (record.heads, record.relations), (predicted.heads, predicted.relations))
            label = f"Tree of {name}: {example.condition}, sentence {example.number}"
            svg = Markup(arcs)  # noqa: S704 - escaped by ElementTree
            count = len(record.words)
            shown |= {"kind": "tree", "svg": svg, "label": label, "arcs": _wrong_arcs(record, predicted, wrong)}
        case Pair():
            count, shown = 1, shown | {"kind": "pair", "pair": record, "label": predicted}
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


def _translations(record: Bitext, predictions: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """List source, reference and each run's translation: name, remark, text."""
    cards = [("Source", "", record.source), ("Reference", "", record.target)]
    return cards + [
        (name, _remark(record, predicted), predicted or "(empty)") for name, predicted in predictions.items()
    ]


def _remark(record: Bitext, predicted: str) -> str:
    if predicted == record.target:
        return "(as the reference)"
    try:
        return f"(chrF {float(CHRF.value(chrf_statistics([record.target], [predicted]).sum(0))):.0f})"
    except PolyloomError:  # sacrebleu is in an extra, and this is no evaluation
        return ""
