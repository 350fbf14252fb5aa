"""``polyloom predict``: a filter from stdin to stdout."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from polyloom.cli.options import Checkpoint

if TYPE_CHECKING:
    from polyloom.conditions import Condition
    from polyloom.data.records import Record
    from polyloom.inference.predictor import Predictor
    from polyloom.loading import LoadedModel
    from polyloom.tasks.formats import Format


def predict(  # noqa: PLR0913 - options of a command
    run: Annotated[str, typer.Argument(help="Folder of a run, or of exported adapters; or the URL of a server.")],
    condition: Annotated[
        str | None,
        typer.Argument(
            help="Task and language of the input, such as pos/tr. Without it, every JSON line names its own."
        ),
    ] = None,
    *,
    source: Annotated[
        Literal["text", "tokenized", "columns", "conllu", "jsonl"] | None,
        typer.Option("--input", help="Format of stdin."),
    ] = None,
    target: Annotated[
        Literal["text", "columns", "conllu", "jsonl"] | None, typer.Option("--output", help="Format of stdout.")
    ] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, max=100, help="For mt: hypotheses that the search keeps. Default: 5.")
    ] = None,
    pivot: Annotated[str | None, typer.Option(help="For mt: a language to translate into first.")] = None,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="For mt: lines are paragraphs, to translate sentence by sentence.")
    ] = False,
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Write the probability of every predicted label. For JSON output.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="End at the first input that cannot be predicted.")] = False,
    checkpoint: Checkpoint = None,
) -> None:
    r"""Predict what arrives on stdin, in order, as it arrives.

    pos, ner and dep read one raw text per line (text), one sentence per line with spaces between words (tokenized), one
    word per line with a blank line after each sentence (columns), CoNLL-U (conllu), or JSON lines with "words" or
    "text" (jsonl). Raw text is segmented into words; JSON output has their "offsets". nli reads a premise,
    a tab and a hypothesis per line (columns), or JSON lines with these names; copa a premise, a question and choices;
    qa a question and its context. cls and mt read one text per line (text)
    and write one label or translation per line, or read JSON lines with "text", which get a "label" or a
    "translation" (jsonl). The format of the output follows from that of the input.

    A JSON line may name its own "condition", such as pos/tr; without the argument every line must.

    An input that cannot be predicted (not UTF-8, more than 50,000 letters, an unknown language) fails alone: a JSON
    line gets an "error", other formats an empty prediction, and a message on stderr has their number. The exit code is
    then 0; it is 1 if no input was predicted, or with --strict. A text that is too long for the model is translated
    sentence by sentence. For other tasks it is cut, and stderr says how many were.

    If a server (polyloom serve) needs an API key, the environment variable POLYLOOM_API_KEY must have it.

    Example: echo "Kedi uyuyor." | polyloom predict runs/first pos/tr

    Example: polyloom predict http://localhost:8000 mt/en/de < in.txt > out.txt
    """
    from polyloom.conditions import Condition  # noqa: PLC0415 - imports torch
    from polyloom.inference.streams import choose_formats  # noqa: PLC0415

    asked = Condition.parse(condition) if condition else None
    formats = choose_formats(asked.task if asked else None, source, target)
    options = Options(beams, pivot, checkpoint, sentences=sentences, confidence=confidence, strict=strict)
    _filter(_find_source(run, options), asked, formats, options)


class Options(NamedTuple):
    """Options of the command."""

    beams: int | None
    pivot: str | None
    checkpoint: str | None
    sentences: bool
    confidence: bool
    strict: bool


def _check(loaded: "LoadedModel", options: Options, condition: "Condition") -> None:
    """Raise an error for a condition that cannot be predicted, or not with these options."""
    from polyloom.errors import ConditionError  # noqa: PLC0415
    from polyloom.inference.translate import steps  # noqa: PLC0415
    from polyloom.inference.untrained import TrainedParts  # noqa: PLC0415

    predictor = loaded.predictor
    task = predictor.model.task(condition.task)
    if (options.pivot or options.sentences) and not task.generates:
        raise ConditionError(f"--pivot and --sentences are for translation, not for {condition.task}.")
    _check_confidence(options, condition)
    for step in steps(condition, options.pivot):
        predictor.model.method.require_supported(step)
        task.check(step, predictor.tokenizer)
    TrainedParts(predictor.model.method, loaded.trained_on).warn(steps(condition, options.pivot))


def _check_confidence(options: Options, condition: "Condition") -> None:
    from polyloom.errors import ConditionError  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415 - imports torch

    if options.confidence and TASKS[condition.task].generates:
        raise ConditionError(f"--confidence: predictions of {condition.task} have no probabilities.")


class Source(NamedTuple):
    """What predicts: a run, or a server.

    Attributes:
        predict: Predicts records of any conditions, as `predict_stream` needs it.
        check: Raises an error for a condition that cannot be predicted.
        report_long: Says what became of inputs that were too long.
    """

    predict: "Callable[[list[tuple[Condition, Record]]], Iterable[Any]]"
    check: "Callable[[Condition], None]"
    report_long: Callable[[], dict[str, str]]


def _find_source(run: str, options: Options) -> Source:
    return _server(run, options) if run.startswith(("http://", "https://")) else _loaded(Path(run), options)


def _loaded(run: Path, options: Options) -> Source:
    """Predict with a run on this machine."""
    from polyloom.backbones.decoding import Decoding  # noqa: PLC0415 - imports torch
    from polyloom.inference.translate import translate  # noqa: PLC0415
    from polyloom.loading import load_source  # noqa: PLC0415

    loaded = load_source(run, checkpoint=options.checkpoint)
    predictor = loaded.predictor
    predictor.decoding = Decoding() if options.beams is None else Decoding(beams=options.beams)
    pivot, sentences = options.pivot, options.sentences

    def predict_inputs(inputs: "list[tuple[Condition, Record]]") -> "Iterable[Any]":
        if not (pivot or sentences):
            return predictor.predict_mixed(inputs, confidences=options.confidence, strict=False)
        return (
            text
            for condition, group in groupby(inputs, key=itemgetter(0))
            for text in translate(
                predictor, [r for _, r in group], condition, pivot=pivot, sentences=sentences, strict=False
            )
        )

    return Source(predict_inputs, partial(_check, loaded, options), predictor.report_long)


def _server(url: str, options: Options) -> Source:
    """Predict with a server. A row that it cannot predict fails alone; if it is full or gone for long, all rows do."""
    from polyloom.client import connect  # noqa: PLC0415
    from polyloom.errors import OverloadedError, PolyloomError, PredictionError, UnavailableError  # noqa: PLC0415
    from polyloom.inference.predictions import decoded_value  # noqa: PLC0415

    for name in ("beams", "pivot", "sentences", "checkpoint"):
        if getattr(options, name):
            raise PolyloomError(f"--{name}: not with a server, which has its own settings.")
    client = connect(url, key=os.environ.get("POLYLOOM_API_KEY"))

    def predict_inputs(inputs: "list[tuple[Condition, Record]]") -> "Iterator[Any]":
        for prediction in client.predict_each((record, condition) for condition, record in inputs):
            if isinstance(prediction, OverloadedError | UnavailableError):
                raise prediction
            if isinstance(prediction, PolyloomError):
                yield PredictionError(str(prediction))
            else:
                yield decoded_value(prediction) if options.confidence else decoded_value(prediction)[0]

    def check(condition: "Condition") -> None:
        _check_confidence(options, condition)
        client.check(condition)

    return Source(predict_inputs, check, client.report_long)


def _filter(source: Source, asked: "Condition | None", formats: "tuple[Format, Format]", options: Options) -> None:
    from polyloom.inference.streams import Tally, predict_stream  # noqa: PLC0415 - imports torch

    if asked:
        source.check(asked)
    if sys.stdin.isatty():
        typer.echo(f"Reading {formats[0]} from the terminal; Ctrl-D ends it.", err=True)
    stdin, tally = cast("BufferedIOBase", sys.stdin.buffer), Tally()
    texts = predict_stream(
        stdin, asked, formats=formats, predict=source.predict, check=source.check, confidence=options.confidence,
        strict=options.strict, tally=tally,
    )  # fmt: skip
    _write(texts)
    say_long(source)
    if tally.failed:
        inputs = "1 input was" if tally.failed == 1 else f"{tally.failed:,} inputs were"
        typer.echo(f"polyloom: {inputs} not predicted. The first: {tally.first}", err=True)
        if not tally.predicted:
            raise typer.Exit(1)


def say_long(predictor: "Predictor | Source") -> None:
    """Say on stderr how many inputs were cut or split because they were too long."""
    for sentence in predictor.report_long().values():
        typer.echo(f"polyloom: {sentence}", err=True)


def _write(texts: Iterable[str]) -> None:
    stdout = sys.stdout.buffer
    with counting(sys.stderr.isatty() and not sys.stdout.isatty()) as count:
        for text in texts:
            stdout.write(text.encode())
            stdout.flush()  # predictions are written as soon as they are there
            count(text.count("\n"))


@contextmanager
def counting(shown: bool) -> Iterator[Callable[[int], None]]:
    """Show on stderr how many lines were written, where someone can see it."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where it is seen
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = SpinnerColumn(), TextColumn("{task.completed:,} lines"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("lines", total=None)
        yield lambda lines: progress.advance(bar, lines)
