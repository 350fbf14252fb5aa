r"""Predictions for a stream: inputs are read as they arrive and predicted in order, before the stream ends.

Which formats there are, and how they look, is up to the task (`Task.inputs`, `Task.read`, `Task.write`):

* ``text``: one raw text per line. For tasks on words it is segmented into words; JSON keeps their ``offsets``.
* ``tokenized``: one sentence per line, with spaces between words.
* ``columns``: one word per line, in the first column, and a blank line behind every sentence. For nli, in:
  ``premise<TAB>hypothesis``, out: the label.
* ``conllu``: CoNLL-U. Whatever is not predicted stays as it was, byte for byte.
* ``jsonl``: JSON objects, which get further keys.

A blank line where an input could begin is an empty input, and has an (empty) prediction like any other. A JSON object
may name a ``condition`` of its own, so that one stream holds inputs of any tasks and languages.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import BufferedIOBase
from typing import Any, cast, get_args

from polyloom.conditions import Condition
from polyloom.data.records import Record
from polyloom.errors import DataError, PolyloomError, suggest
from polyloom.inference.predictor import WINDOW
from polyloom.io.files import LIMITS, checked_text, decoded, json_object
from polyloom.tasks import TASKS
from polyloom.tasks.formats import STDIN, Format, Line, StreamItem

_CHUNK = 1 << 16
_Item = tuple[Condition | None, StreamItem]


def choose_formats(task: str | None, given: str | None, wanted: str | None) -> tuple[Format, Format]:
    """Choose the formats of input and output for a task.

    Args:
        task: Name of the task; ``None`` if every line names its own condition, which takes JSON.
        given: Format of the input; the task's usual one by default.
        wanted: Format of the output; by default the one that goes with the input.
    """
    if task is None:
        if (given or "jsonl", wanted or "jsonl") != ("jsonl", "jsonl"):
            raise PolyloomError("predict: without a condition every line must name its own. Use --input jsonl.")
        return "jsonl", "jsonl"
    predictable = {name: known for name, known in TASKS.items() if known.inputs}
    if task not in predictable:
        if task in TASKS:
            metrics = ", ".join(metric.name for metric in TASKS[task].metrics)
            raise PolyloomError(f"{task}: there is nothing to predict. polyloom evaluate measures it ({metrics}).")
        raise PolyloomError(f"task {task!r}: unknown task. {suggest(task, predictable)}")
    inputs, outputs = predictable[task].inputs, predictable[task].outputs
    source = next(iter(inputs)) if given is None else _format(given)
    if source not in inputs:
        raise PolyloomError(f"--input {source}: not for {task}. {suggest(source, inputs)}")
    target = inputs[source] if wanted is None else _format(wanted)
    if target not in outputs:
        raise PolyloomError(f"--output {target}: cannot hold predictions of {task}. {suggest(target, outputs)}")
    return source, target


def _format(name: str) -> Format:
    if name not in get_args(Format):
        raise PolyloomError(f"{name!r} is not a format. {suggest(name, get_args(Format))}")
    return cast("Format", name)


def predict_stream(
    stream: BufferedIOBase,
    condition: Condition | None,
    *,
    formats: tuple[Format, Format],
    predict: Callable[[list[tuple[Condition, Record]]], Iterable[Any]],
    check: Callable[[Condition], None] = lambda _: None,
    confidence: bool = False,
) -> Iterator[str]:
    """Predict the inputs of a stream as they arrive.

    Args:
        stream: Bytes; nothing is waited for as long as there is something to predict.
        condition: The condition of inputs that do not name their own; ``None`` if all do.
        formats: Formats of input and output, from `choose_formats`.
        predict: Predicts records of any conditions, in order.
        check: Raises an error for a condition that cannot be predicted.
        confidence: Whether `predict` returns pairs of prediction and probability; it is written as ``confidence``.

    Yields:
        Text to write at once.
    """
    source, target = formats
    if confidence and target != "jsonl":
        raise PolyloomError("--confidence: probabilities are written as JSON. Add --output jsonl.")
    items = _items(read_available_lines(stream), _Conditions(condition, target, check), source)
    for group in _grouped(items):
        asked = [(named, item.record) for named, item in group if named is not None and item.record is not None]
        predictions = iter(predict(asked))
        yield "".join(_written(named, item, predictions, target, confidence=confidence) for named, item in group)


def _written(
    condition: Condition | None,
    item: StreamItem,
    predictions: Iterator[Any],
    target: Format,
    *,
    confidence: bool,
) -> str:
    if condition is None:  # a blank line among lines with conditions of their own
        return "\n"
    prediction = None if item.record is None else next(predictions)
    if confidence and prediction is not None:
        prediction, probability = prediction
        kept = item.source if isinstance(item.source, dict) else {}
        item = replace(item, source={**kept, "confidence": probability})
    return TASKS[condition.task].write(item, prediction, target)


class _Conditions:
    """The conditions of the inputs of a stream, each checked once."""

    def __init__(self, default: Condition | None, target: Format, check: Callable[[Condition], None]) -> None:
        self.default, self.target, self.check = default, target, check
        self.checked = {default}

    def of(self, line: Line, source: Format) -> Condition:
        """Return the condition that a line names, or the default one."""
        named = json_object(line.content, STDIN, line.number).get("condition") if source == "jsonl" else None
        if named is None:
            if self.default is None:
                raise DataError(STDIN, line.number, 'no "condition", such as pos/tr, and none was given for all lines.')
            return self.default
        try:
            condition = Condition.parse(checked_text(named, STDIN, line.number, name="condition"))
            if condition not in self.checked:
                choose_formats(condition.task, source, self.target)
                self.check(condition)
        except DataError:
            raise
        except PolyloomError as error:
            raise DataError(STDIN, line.number, str(error)) from error
        self.checked.add(condition)
        return condition


def read_available_lines(stream: BufferedIOBase) -> Iterator[Line | None]:
    """Read lines as they come; ``None`` where there are no more for the moment."""
    rest, number = b"", 0
    while chunk := stream.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            number += 1
            yield Line(number, decoded(raw, STDIN, number) + "\n")
        if len(rest) >= LIMITS.line_bytes:
            raise DataError(STDIN, number + 1, f"a line of more than {LIMITS.line_bytes} bytes.")
        yield None
    if rest:
        yield Line(number + 1, decoded(rest, STDIN, number + 1))


def _grouped(items: Iterator[_Item | None]) -> Iterator[list[_Item]]:
    """Group the items that can be predicted now; before a mistake in the input, all that stood before it."""
    waiting: list[_Item] = []
    try:
        for item in items:
            if item is not None:
                waiting.append(item)
            if waiting and (item is None or len(waiting) == WINDOW):
                yield waiting
                waiting = []
    except DataError:
        if waiting:
            yield waiting
        raise
    if waiting:
        yield waiting


def _items(lines: Iterable[Line | None], conditions: _Conditions, source: Format) -> Iterator[_Item | None]:
    default = conditions.default
    for unit in _units(lines, multiline=default is not None and source in TASKS[default.task].multiline):
        if unit is None:
            yield None
        elif not unit[0].content.strip():
            yield default, StreamItem(unit[0].number, None, unit[0].text)
        else:
            condition = conditions.of(unit[0], source)
            yield condition, TASKS[condition.task].read(unit, source, condition.languages[-1])


def _units(lines: Iterable[Line | None], *, multiline: bool) -> Iterator[list[Line] | None]:
    """Group lines: one by one, or up to a blank line, which is the last of its group."""
    unit: list[Line] = []
    size = 0
    for line in lines:
        if line is None:
            yield None
            continue
        unit.append(line)
        size += len(line.text)
        if size > LIMITS.line_bytes:
            raise DataError(STDIN, line.number, f"a sentence of more than {LIMITS.line_bytes} letters.")
        if not multiline or not line.content.strip():
            yield unit
            unit, size = [], 0
    if unit:
        yield unit
