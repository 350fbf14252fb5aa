r"""Predictions for a stream: inputs are read as they arrive and predicted in order, before the stream ends.

Which formats there are, and how they look, is up to the task (`Task.inputs`, `Task.read`, `Task.write`):

* ``text``: one raw text per line. For tasks on words it is segmented into words; JSON keeps their ``offsets``.
* ``tokenized``: one sentence per line, with spaces between words.
* ``columns``: one word per line, in the first column, and a blank line behind every sentence. For nli, in:
  ``premise<TAB>hypothesis``, out: the label; likewise ``premise<TAB>question<TAB>choice<TAB>choice`` for copa and
  ``question<TAB>context`` for qa.
* ``conllu``: CoNLL-U. Whatever is not predicted stays as it was, byte for byte.
* ``jsonl``: JSON objects, which get further keys.

A blank line where an input could begin is an empty input, and has an (empty) prediction like any other. A JSON object
may name a ``condition`` of its own, so that one stream holds inputs of any tasks and languages.

An input that cannot be predicted (not UTF-8, too long, of an unknown language) fails alone. In JSON it gets an
``error`` beside what it had; in other formats its prediction is that of an empty input.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from io import BufferedIOBase
from typing import Any, cast, get_args

from polyloom.conditions import Condition
from polyloom.data.records import Record
from polyloom.errors import DataError, PolyloomError, PredictionError, suggest
from polyloom.inference.predictor import WINDOW
from polyloom.io.files import LIMITS, checked_text, decoded, json_object
from polyloom.tasks import TASKS
from polyloom.tasks.formats import STDIN, Format, Line, StreamItem, write_json

_CHUNK = 1 << 16
_REPLACEMENT = "\ufffd"
_Item = tuple[Condition | None, StreamItem]


@dataclass
class Tally:
    """What became of the inputs of a stream.

    Attributes:
        predicted: Number of inputs with a prediction; empty ones are not counted.
        failed: Number of inputs that could not be predicted.
        first: What was wrong with the first of them.
    """

    predicted: int = 0
    failed: int = 0
    first: str = ""

    def fail(self, error: str) -> None:
        """Count an input that could not be predicted."""
        self.failed += 1
        self.first = self.first or error


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


def predict_stream(  # noqa: PLR0913 - options of a command
    stream: BufferedIOBase,
    condition: Condition | None,
    *,
    formats: tuple[Format, Format],
    predict: Callable[[list[tuple[Condition, Record]]], Iterable[Any]],
    check: Callable[[Condition], None] = lambda _: None,
    confidence: bool = False,
    strict: bool = False,
    tally: Tally | None = None,
) -> Iterator[str]:
    """Predict the inputs of a stream as they arrive.

    Args:
        stream: Bytes; nothing is waited for as long as there is something to predict.
        condition: The condition of inputs that do not name their own; ``None`` if all do.
        formats: Formats of input and output, from `choose_formats`.
        predict: Predicts records of any conditions, in order; a `PredictionError` is the prediction of a record that
            cannot be predicted.
        check: Raises an error for a condition that cannot be predicted.
        confidence: Whether `predict` returns pairs of prediction and probability; it is written as ``confidence``.
        strict: Whether the first input that cannot be predicted ends the stream with an error.
        tally: Counts the inputs.

    Yields:
        Text to write at once.
    """
    source, target = formats
    if confidence and target != "jsonl":
        raise PolyloomError("--confidence: probabilities are written as JSON. Add --output jsonl.")
    tally = Tally() if tally is None else tally
    items = _items(read_available_lines(stream), _Conditions(condition, target, check), source, strict=strict)
    for group in _grouped(items):
        asked = [(named, item.record) for named, item in group if named is not None and item.record is not None]
        predictions = iter(predict(asked))
        written: list[str] = []
        for named, item in group:
            prediction = None if named is None or item.record is None else next(predictions)
            if strict and isinstance(prediction, PredictionError):
                yield "".join(written)
                raise DataError(STDIN, item.line, str(prediction))
            written.append(_written(named, item, prediction, target, tally, confidence=confidence))
        yield "".join(written)


def _written(
    condition: Condition | None,
    item: StreamItem,
    prediction: Any,
    target: Format,
    tally: Tally,
    *,
    confidence: bool,
) -> str:
    if item.error or isinstance(prediction, PredictionError):
        return _write_error(item, item.error or prediction, target, tally)
    if condition is None:  # a blank line among lines with conditions of their own
        return "\n"
    if confidence and prediction is not None:
        prediction, probability = prediction
        kept = item.source if isinstance(item.source, dict) else {}
        item = replace(item, source={**kept, "confidence": probability})
    try:
        written = TASKS[condition.task].write(item, prediction, target)
    except PolyloomError as error:  # the caller's own fields cannot be written
        return _write_error(item, error, target, tally)
    tally.predicted += prediction is not None
    return written


def _write_error(item: StreamItem, error: str | PolyloomError, target: Format, tally: Tally) -> str:
    """Write the error of an input into its JSON object; other formats have no place for it."""
    text = error if isinstance(error, str) else str(DataError(STDIN, item.line, str(error)))
    tally.fail(text)
    if target != "jsonl":
        return "\n"
    try:
        return write_json(item, error=text)
    except PolyloomError:
        return write_json(replace(item, source=""), error=text)


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
    """Read lines as they come; ``None`` where there are no more for the moment.

    A line that is not text has an error. Of a line that is too long, no more than a chunk is held in memory.
    """
    rest, number, too_long = b"", 0, False
    while chunk := stream.read1(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for raw in lines:
            number += 1
            yield _line(number, raw, "\n", too_long=too_long)
            too_long = False
        if len(rest) >= LIMITS.line_bytes:
            rest, too_long = b"", True
        yield None
    if rest or too_long:
        yield _line(number + 1, rest, "", too_long=too_long)


def _line(number: int, raw: bytes, end: str, *, too_long: bool) -> Line:
    try:
        if too_long or len(raw) >= LIMITS.line_bytes:
            raise DataError(STDIN, number, f"a line of more than {LIMITS.line_bytes} bytes.")
        return Line(number, decoded(raw, STDIN, number) + end)
    except DataError as error:
        return Line(number, _REPLACEMENT + end, error)


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


def _items(
    lines: Iterable[Line | None], conditions: _Conditions, source: Format, *, strict: bool
) -> Iterator[_Item | None]:
    default = conditions.default
    for unit in _units(lines, multiline=default is not None and source in TASKS[default.task].multiline):
        if unit is None:
            yield None
        elif not unit[0].content.strip():
            yield default, StreamItem(unit[0].number, None, unit[0].text)
        else:
            try:
                item = _read(unit, conditions, source)
            except DataError as error:
                if strict:
                    raise
                item = default, StreamItem(unit[0].number, None, _kept(unit[0], source), error=str(error))
            yield item


def _read(unit: list[Line], conditions: _Conditions, source: Format) -> _Item:
    if unit[0].error is not None:
        raise unit[0].error
    condition = conditions.of(unit[0], source)
    return condition, TASKS[condition.task].read(unit, source, condition.languages[-1])


def _kept(line: Line, source: Format) -> dict[str, Any] | str:
    """Return the JSON object of an input that is wrong, as far as it can be read."""
    try:
        return json_object(line.content, STDIN, line.number) if source == "jsonl" and line.error is None else ""
    except DataError:
        return ""


def _units(lines: Iterable[Line | None], *, multiline: bool) -> Iterator[list[Line] | None]:
    """Group lines: one by one, or up to a blank line, which is the last of its group.

    Of a group with a line that is not text, or with too many letters, only the first line is held, with the error.
    """
    unit: list[Line] = []
    size = 0
    for line in lines:
        if line is None:
            yield None
            continue
        size += len(line.text)
        error = line.error
        if size > LIMITS.line_bytes:
            error = DataError(STDIN, line.number, f"a sentence of more than {LIMITS.line_bytes} letters.")
        if not unit or unit[0].error is None:
            unit.append(line)
            unit = [unit[0]._replace(error=error)] if error else unit
        if not multiline or not line.content.strip():
            yield unit
            unit, size = [], 0
    if unit:
        yield unit
