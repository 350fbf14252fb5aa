"""Sentences to look at, as they are shown: tags under words, trees as arcs, translations side by side."""

from collections.abc import Sequence
from typing import Any

from polyloom.data.records import Bitext, Pair, Tagged, Tree
from polyloom.errors import PolyloomError
from polyloom.metrics.bleu import chrf_statistics
from polyloom.metrics.score import CHRF
from polyloom.report.examples import LONG, READ, SHORT, Example, Examples, mistakes
from polyloom.report.html import Markup, joined, note, scrolling, section, tag
from polyloom.report.trees import draw_tree

_RULE = (
    f"Of every task, languages from the worst score to the best; of each the first sentence (of {SHORT} to {LONG} "
    f"words, among the first {READ}) in which a run made a mistake, so that these are no fair sample of the answers."
)


def examples_section(examples: Examples, count: int) -> Markup:
    """The section with examples, task by task."""
    parts: list[Markup] = []
    if count == 0:
        parts.append(note("Not asked for: --examples 3 shows three per task."))
    elif examples.chosen:
        parts.append(tag("p", _RULE))
    for task in dict.fromkeys(example.condition.task for example in examples.chosen):
        parts.append(tag("h3", task))
        parts += [_example(one) for one in examples.chosen if one.condition.task == task]
    parts += [note(f"No examples of {failure}") for failure in examples.failures]
    return section("examples", "Examples", *parts)


def _example(example: Example) -> Markup:
    where = joined([tag("b", example.condition), f", sentence {example.number} of ", tag("code", example.corpus)])
    shown: Sequence[Markup]
    if isinstance(example.record, Bitext):
        shown = [_translations(example.record, example.answers)]
    else:
        shown = [_answered(name, example, answer) for name, answer in example.answers.items()]
    return tag("article", tag("p", where, class_="where"), *shown, class_="example")


def _answered(name: str, example: Example, answer: Any) -> Markup:
    record = example.record
    wrong = mistakes(record, answer)
    match record:
        case Tagged():
            count, drawn = len(record.words), _tags(record, answer)
        case Tree():
            said = f"Tree of {name}: {example.condition}, sentence {example.number}"
            arcs = draw_tree(record.words, (record.heads, record.relations), (answer.heads, answer.relations))
            count, drawn = len(record.words), joined([scrolling(said, arcs), _wrong_arcs(record, answer, wrong)])
        case Pair():
            count, drawn = 1, _pair(record, answer)
        case _:
            count, drawn = 0, Markup("")
    verdict = f"{len(wrong)} of {count} wrong" if wrong else "all right" if count > 1 else "right"
    return tag("div", tag("p", tag("span", name, class_="run"), f": {verdict}", class_="verdict"), drawn)


def _tags(record: Tagged, answer: Sequence[str]) -> Markup:
    """Words with their tags below; where the answer differs, both."""
    words = []
    for word, right, said in zip(record.words, record.tags, answer, strict=True):
        if said == right:
            below = tag("span", "\u00a0" if right == "O" else right, class_="tag")
            words.append(tag("li", tag("bdi", word), below))
        else:
            below = joined([tag("span", "✗ ", said, class_="tag no"), tag("span", "gold: ", right, class_="tag")])
            words.append(tag("li", tag("bdi", word), below, class_="wrong"))
    return tag("ol", *words, class_="tagged", dir="auto")


def _wrong_arcs(record: Tree, answer: Any, wrong: Sequence[int]) -> Markup | None:
    """In words what the drawing shows."""
    if not wrong:
        return None

    def head(position: int) -> Markup:
        return tag("bdi", record.words[position - 1]) if position else Markup("(root)")

    items = (
        tag(
            "li", tag("bdi", record.words[i]), f": ✗ {answer.relations[i]} of ", head(int(answer.heads[i])),
            f"; gold: {record.relations[i]} of ", head(record.heads[i]),
        )
        for i in wrong
    )  # fmt: skip
    return tag("details", tag("summary", "The wrong arcs in words"), tag("ul", *items))


def _pair(record: Pair, answer: str) -> Markup:
    right = answer == record.label
    said = [answer] if right else ["✗ ", answer, " (gold: ", record.label, ")"]
    cards = (("First", record.first), ("Second", record.second), ("Answer", joined(said)))
    return tag("dl", *(_card(name, text) for name, text in cards), class_="cards")


def _translations(record: Bitext, answers: Any) -> Markup:
    """Source, reference and what every run wrote, side by side where there is room."""
    cards = [_card("Source", record.source), _card("Reference", record.target)]
    for name, answer in answers.items():
        cards.append(_card(joined([tag("span", name, class_="run"), _likeness(record, answer)]), answer or "(nothing)"))
    return tag("dl", *cards, class_="cards")


def _likeness(record: Bitext, answer: str) -> str:
    if answer == record.target:
        return " (as the reference)"
    try:
        return f" (chrF {float(CHRF.value(chrf_statistics([record.target], [answer]).sum(0))):.0f})"
    except PolyloomError:  # sacrebleu is an extra, and this is no evaluation
        return ""


def _card(name: object, text: object) -> Markup:
    return tag("div", tag("dt", name), tag("dd", text, dir="auto"))
