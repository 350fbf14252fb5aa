r"""Predictions for a stream: inputs are read as they arrive and predicted in order, before the stream ends.

Which formats there are, and how they look, is up to the task (`Task.inputs`, `Task.read`, `Task.write`):

* ``text``: one text per line. For tasks on words, words between spaces; nothing is tokenized here.
* ``columns``: one word per line, in the first column, and a blank line behind every sentence. For nli, in:
  ``premise<TAB>hypothesis``, out: the label.
* ``conllu``: CoNLL-U. Whatever is not predicted stays as it was, byte for byte.
* ``jsonl``: JSON objects, which get further keys.

A blank line where an input could begin is an empty input, and has an (empty) prediction like any other.
"""

from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from typing import Any, get_args

from polyloom.data.records import Record
from polyloom.errors import DataError, PolyloomError, suggest
from polyloom.inference.predictor import WINDOW
from polyloom.io.files import LIMITS, decoded
from polyloom.tasks import TASKS, Task
from polyloom.tasks.formats import STDIN, Format, Line, StreamItem

_CHUNK = 1 << 16


def choose_formats(task: str, given: str | None, wanted: str | None) -> tuple[Format, Format]:
    """Choose the formats of input and output for a task.

    Args:
        task: Name of the task.
        given: Format of the input; the task's usual one by default.
        wanted: Format of the output; by default the one that goes with the input.
    """
    predictable = {name: known for name, known in TASKS.items() if known.inputs}
    if task not in predictable:
        if task in TASKS:
            metrics = ", ".join(metric.name for metric in TASKS[task].metrics)
            raise PolyloomError(f"{task}: there is nothing to predict. polyloom evaluate measures it ({metrics}).")
        raise PolyloomError(f"task {task!r}: unknown task. {suggest(task, predictable)}")
    inputs, outputs = predictable[task].inputs, predictable[task].outputs
    source: Format = _format(given) or next(iter(inputs))
    if source not in inputs:
        raise PolyloomError(f"--input {source}: not for {task}. {suggest(source, inputs)}")
    target: Format = _format(wanted) or inputs[source]
    if target not in outputs:
        raise PolyloomError(f"--output {target}: cannot hold predictions of {task}. {suggest(target, outputs)}")
    return source, target


def _format(name: str | None) -> Format | None:
    for known in get_args(Format):
        if name == known:
            form: Format = known
            return form
    if name is not None:
        raise PolyloomError(f"{name!r} is not a format. {suggest(name, get_args(Format))}")
    return None


def predict_stream(
    stream: BufferedIOBase,
    task: str,
    *,
    formats: tuple[Format, Format],
    predict: Callable[[list[Record]], Iterable[Any]],
) -> Iterator[str]:
    """Predict what arrives.

    Args:
        stream: Bytes; nothing is waited for as long as there is something to predict.
        task: Name of the task.
        formats: Formats of input and output, from `choose_formats`.
        predict: Predicts records, in order.

    Yields:
        Text to write at once.
    """
    (source, target), known = formats, TASKS[task]
    for group in _grouped(_items(read_available_lines(stream), known, source)):
        predictions = iter(predict([item.record for item in group if item.record is not None]))
        yield "".join(known.write(item, None if item.record is None else next(predictions), target) for item in group)


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


def _grouped(items: Iterator[StreamItem | None]) -> Iterator[list[StreamItem]]:
    """Group the items that can be predicted now; before a mistake in the input, all that stood before it."""
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


def _items(lines: Iterable[Line | None], task: type[Task], source: Format) -> Iterator[StreamItem | None]:
    for unit in _units(lines, multiline=source in task.multiline):
        if unit is None:
            yield None
        elif not unit[0].content.strip():
            yield StreamItem(unit[0].number, None, unit[0].text)
        else:
            yield task.read(unit, source)


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
