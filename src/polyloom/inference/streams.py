r"""Predictions for a stream: inputs are read as they arrive and predicted in order, before the stream ends.

The task's kind of record says which formats there are and how they look (`RecordKind.read`, `RecordKind.write`):

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
from polyloom.data.kinds import STDIN, Format, Line, StreamItem, write_json
from polyloom.data.records import Prediction, Record
from polyloom.errors import DataError, Location, PolyloomError, PredictionError, suggest
from polyloom.inference.predictor import WINDOW
from polyloom.io.files import LIMITS, checked_text, decoded, json_object
from polyloom.tasks import TASKS

_CHUNK = 1 << 16
_REPLACEMENT = "\ufffd"


@dataclass
class Tally:
    """Counts of the inputs of a stream."""

    predicted: int = 0
    """Inputs with a prediction; empty ones are not counted."""
    failed: int = 0
    """Inputs that could not be predicted."""
    first: str = ""
    """Error of the first of them."""

    def fail(self, error: str) -> None:
        """Count an input that could not be predicted."""
        self.failed += 1
        self.first = self.first or error


def choose_formats(task: str | None, input_format: str | None, output_format: str | None) -> tuple[Format, Format]:
    """Choose the formats of input and output for a task.

    Args:
        task: Name of the task; ``None`` if every line names its own condition, which takes JSON.
        input_format: Format of the input; the task's usual one by default.
        output_format: Format of the output; by default the one that goes with the input.
    """
    if task is None:
        if (input_format or "jsonl", output_format or "jsonl") != ("jsonl", "jsonl"):
            raise PolyloomError("predict: without a condition every line must name its own. Use --input jsonl.")
        return "jsonl", "jsonl"
    predictable = {name: known for name, known in TASKS.items() if known.formats()}
    if task not in predictable:
        if task in TASKS:
            metrics = ", ".join(metric.name for metric in TASKS[task].metrics)
            raise PolyloomError(f"{task}: there is nothing to predict. polyloom evaluate measures it ({metrics}).")
        raise PolyloomError(f"task {task!r}: unknown task. {suggest(task, predictable)}")
    formats = predictable[task].formats()
    outputs = predictable[task].outputs or predictable[task].record_kind().outputs
    usual, *_ = formats  # a kind of record lists its usual format first
    source = usual if input_format is None else _format(input_format)
    if source not in formats:
        raise PolyloomError(f"--input {source}: not for {task}. {suggest(source, formats)}")
    target = formats[source] if output_format is None else _format(output_format)
    if target not in outputs:
        raise PolyloomError(f"--format {target}: cannot hold predictions of {task}. {suggest(target, outputs)}")
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
    predict: Callable[[list[tuple[Condition, Record]]], Iterable[Prediction | PredictionError]],
    check: Callable[[Condition], None] = lambda _: None,
    scores: bool = False,
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
        scores: Whether JSON has the probabilities of predictions, as ``score`` or ``scores``.
        strict: Whether the first input that cannot be predicted ends the stream with an error.
        tally: Counts the inputs.

    Yields:
        Text to write at once.
    """
    if scores and formats[1] != "jsonl":
        raise PolyloomError("--scores: probabilities are written as JSON. Add --format jsonl.")
    tally = Tally() if tally is None else tally
    reader = _ItemReader(condition, formats, check)
    for group in _grouped(reader.items(read_available_lines(stream), strict=strict)):
        # Inputs that are empty or wrong have no record, but a place in the output.
        inputs = {
            place: (item.condition, item.record)
            for place, item in enumerate(group)
            if item.condition is not None and item.record is not None
        }
        predictions = dict(zip(inputs, predict(list(inputs.values())), strict=True))
        texts: list[str] = []
        for place, item in enumerate(group):
            prediction = predictions.get(place)
            if strict and isinstance(prediction, PredictionError):
                yield "".join(texts)
                raise DataError(STDIN, item.line, str(prediction))
            texts.append(_write(item, prediction, formats[1], tally, scores=scores))
        yield "".join(texts)


def _write(item: StreamItem, prediction: Any, target: Format, tally: Tally, *, scores: bool) -> str:
    """Write a prediction; or an error, for which only JSON has a place."""
    error: str | PolyloomError = item.error
    if isinstance(prediction, PredictionError):
        error = prediction
    elif not error:
        if item.condition is None:  # a blank line among lines with conditions of their own
            return "\n"
        try:
            kind = TASKS[item.condition.task].record_kind()
            text = kind.write(item, prediction, target, scores=scores)
        except PolyloomError as unwritable:  # fields of the caller's own object that JSON cannot hold
            error = unwritable
        else:
            tally.predicted += prediction is not None
            return text
    message = error if isinstance(error, str) else str(DataError(STDIN, item.line, str(error)))
    tally.fail(message)
    if target != "jsonl":
        return "\n"
    try:
        return write_json(item, error=message)
    except PolyloomError:
        return write_json(replace(item, source=""), error=message)


class _ItemReader:
    """Reads the inputs of a stream, each with its condition. Conditions are checked once.

    Args:
        default: The condition of inputs that do not name their own.
        formats: Formats of input and output.
        check: Raises an error for a condition that cannot be predicted.
    """

    def __init__(
        self, default: Condition | None, formats: tuple[Format, Format], check: Callable[[Condition], None]
    ) -> None:
        self.default, self.formats, self.check = default, formats, check
        self.checked = {default}

    def items(self, lines: Iterable[Line | None], *, strict: bool) -> Iterator[StreamItem | None]:
        """Yield inputs, and ``None`` where there are no more for the moment."""
        source = self.formats[0]
        multiline = self.default is not None and source in TASKS[self.default.task].record_kind().multiline
        for unit in _units(lines, multiline=multiline):
            if unit is None:
                yield None
            elif not unit[0].content.strip():
                yield StreamItem(unit[0].number, None, unit[0].text, condition=self.default)
            else:
                try:
                    item = self._read(unit)
                except DataError as error:
                    if strict:
                        raise
                    kept = _readable_part(unit[0], source)
                    item = StreamItem(unit[0].number, None, kept, error=str(error), condition=self.default)
                yield item

    def _read(self, unit: list[Line]) -> StreamItem:
        line, source = unit[0], self.formats[0]
        if line.error is not None:
            raise line.error
        named = json_object(line.content, Location(STDIN, line.number)).get("condition") if source == "jsonl" else None
        condition = self.default if named is None else self._parse(named, line)
        if condition is None:
            raise DataError(STDIN, line.number, 'no "condition", such as pos/tr, and none was given for all lines.')
        item = TASKS[condition.task].record_kind().read(unit, source, condition.languages[-1])
        return replace(item, condition=condition)

    def _parse(self, name: Any, line: Line) -> Condition:
        """Parse a condition that a JSON object names, and check that it can be predicted."""
        try:
            condition = Condition.parse(checked_text(name, Location(STDIN, line.number), name="condition"))
            if condition not in self.checked:
                choose_formats(condition.task, *self.formats)
                self.check(condition)
        except DataError:
            raise
        except PolyloomError as error:
            raise DataError(STDIN, line.number, str(error)) from error
        self.checked.add(condition)
        return condition


def read_available_lines(stream: BufferedIOBase) -> Iterator[Line | None]:
    """Read lines as they come; ``None`` where there are no more for the moment.

    A line that is not text has an error. No more than a chunk of a line that is too long is held in memory.
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


def _grouped(items: Iterable[StreamItem | None]) -> Iterator[list[StreamItem]]:
    """Group the inputs that can be predicted now; before a mistake in the input, all that stood before it."""
    waiting: list[StreamItem] = []
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


def _readable_part(line: Line, source: Format) -> dict[str, Any] | str:
    """Return the JSON object of an input that is wrong, as far as it can be read."""
    try:
        return (
            json_object(line.content, Location(STDIN, line.number)) if source == "jsonl" and line.error is None else ""
        )
    except DataError:
        return ""


def _units(lines: Iterable[Line | None], *, multiline: bool) -> Iterator[list[Line] | None]:
    """Group lines: one by one, or up to a blank line, which is the last of its group.

    A group with a line that is not text, or with too many letters, is reduced to its first line, with the error.
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
