"""``polyloom predict``: a filter from stdin to stdout."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedIOBase
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, cast

import typer

from polyloom.cli.options import Checkpoint

if TYPE_CHECKING:
    from polyloom.conditions import Condition
    from polyloom.data.records import Record


def predict(  # noqa: PLR0913 - options of a command
    run: Annotated[str, typer.Argument(help="Folder of a run, or of exported adapters; or the URL of a server.")],
    condition: Annotated[
        str | None,
        typer.Argument(
            help="Task and language of the input, such as pos/tr. Without it, every JSON line names its own."
        ),
    ] = None,
    *,
    input_format: Annotated[
        Literal["text", "tokenized", "columns", "conllu", "jsonl"] | None,
        typer.Option("--input", help="Format of stdin."),
    ] = None,
    output_format: Annotated[
        Literal["text", "columns", "conllu", "jsonl"] | None, typer.Option("--format", help="Format of the output.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: stdout.")] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, max=100, help="For mt: hypotheses that the search keeps. Default: 5.")
    ] = None,
    pivot: Annotated[str | None, typer.Option(help="For mt: a language to translate into first.")] = None,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="For mt: lines are paragraphs, to translate sentence by sentence.")
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write the probability of every predicted label. For JSON output.")
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
    from polyloom.inference.streams import Tally, choose_formats, predict_stream  # noqa: PLC0415

    default = Condition.parse(condition) if condition else None
    formats = choose_formats(default.task if default else None, input_format, output_format)
    options = Options(beams, pivot, checkpoint, sentences=sentences, scores=scores)
    is_server = run.startswith(("http://", "https://"))
    source: Source = ServerSource(run, options) if is_server else RunSource(Path(run), options)
    if default:
        source.check(default)
    if sys.stdin.isatty():
        typer.echo(f"Reading {formats[0]} from the terminal; Ctrl-D ends it.", err=True)
    tally = Tally()
    texts = predict_stream(
        cast("BufferedIOBase", sys.stdin.buffer), default, formats=formats, predict=source.predict, check=source.check,
        scores=scores, strict=strict, tally=tally,
    )  # fmt: skip
    with ExitStack() as stack:
        file = stack.enter_context(output.open("wb")) if output else sys.stdout.buffer
        # Where both are terminals, the predictions themselves show the progress.
        count = stack.enter_context(counting(sys.stderr.isatty() and not sys.stdout.isatty()))
        for text in texts:
            file.write(text.encode())
            file.flush()  # at once: whoever feeds stdin may wait for the answer
            count(text.count("\n"))

    echo_length_warnings(source)
    if tally.failed:
        inputs = "1 input was" if tally.failed == 1 else f"{tally.failed:,} inputs were"
        typer.echo(f"polyloom: {inputs} not predicted. The first: {tally.first}", err=True)
        if not tally.predicted:
            raise typer.Exit(1)


class Options(NamedTuple):
    """Options of the command."""

    beams: int | None
    pivot: str | None
    checkpoint: str | None
    sentences: bool
    scores: bool


class Source(Protocol):
    """A run or a server that predicts."""

    def predict(self, inputs: "list[tuple[Condition, Record]]") -> "Iterable[Any]":
        """Predict records of any conditions in order; an error is in place of the prediction of a record without."""

    def check(self, condition: "Condition") -> None:
        """Raise an error for a condition that cannot be predicted."""

    def pop_length_warnings(self) -> dict[str, str]:
        """Return sentences about inputs that were cut or split because they were too long."""


class RunSource:
    """Predicts with a run on this machine."""

    def __init__(self, run: Path, options: Options) -> None:
        from polyloom.backbones.decoding import Decoding  # noqa: PLC0415 - imports torch
        from polyloom.loading import load_source  # noqa: PLC0415

        loaded = load_source(run, checkpoint=options.checkpoint)
        self.options, self.predictor = options, loaded.predictor
        self.predictor.decoding = Decoding() if options.beams is None else Decoding(beams=options.beams)
        self.trained_parts = loaded.trained_parts
        self.pop_length_warnings = self.predictor.pop_length_warnings

    def predict(self, inputs: "list[tuple[Condition, Record]]") -> "Iterable[Any]":
        """Predict records."""
        from polyloom.inference.translate import translate  # noqa: PLC0415

        pivot, sentences = self.options.pivot, self.options.sentences
        if not (pivot or sentences):
            yield from self.predictor.predictions(inputs, scores=self.options.scores, strict=False)
            return
        for condition, group in groupby(inputs, key=itemgetter(0)):
            records = [record for _, record in group]
            yield from translate(self.predictor, records, condition, pivot=pivot, sentences=sentences, strict=False)

    def check(self, condition: "Condition") -> None:
        """Raise an error for a condition that the run cannot predict, or not with these options."""
        from polyloom.errors import ConditionError  # noqa: PLC0415
        from polyloom.inference.translate import steps  # noqa: PLC0415

        model = self.predictor.model
        task = model.task(condition.task)
        if (self.options.pivot or self.options.sentences) and not task.generates:
            raise ConditionError(f"--pivot and --sentences are for translation, not for {condition.task}.")
        _check_scores(self.options, condition)
        for step in steps(condition, self.options.pivot):
            model.method.require_supported(step)
            task.check(step, self.predictor.tokenizer)
        self.trained_parts.warn(steps(condition, self.options.pivot))


class ServerSource:
    """Predicts with a server. A row that it cannot predict fails alone; if it is full or gone for long, all rows do."""

    def __init__(self, url: str, options: Options) -> None:
        from polyloom.client import connect  # noqa: PLC0415
        from polyloom.errors import PolyloomError  # noqa: PLC0415

        for name in ("beams", "pivot", "sentences", "checkpoint"):
            if getattr(options, name):
                raise PolyloomError(f"--{name}: not with a server, which has its own settings.")
        self.options = options
        self.client = connect(url, key=os.environ.get("POLYLOOM_API_KEY"))
        self.pop_length_warnings = self.client.pop_length_warnings

    def predict(self, inputs: "list[tuple[Condition, Record]]") -> "Iterator[Any]":
        """Predict records."""
        from polyloom.errors import OverloadedError, PolyloomError, PredictionError, UnavailableError  # noqa: PLC0415

        for prediction in self.client.predict_each((record, condition) for condition, record in inputs):
            if isinstance(prediction, OverloadedError | UnavailableError):
                raise prediction
            yield PredictionError(str(prediction)) if isinstance(prediction, PolyloomError) else prediction

    def check(self, condition: "Condition") -> None:
        """Raise an error for a condition that the server does not predict."""
        _check_scores(self.options, condition)
        self.client.check(condition)


def _check_scores(options: Options, condition: "Condition") -> None:
    from polyloom.errors import ConditionError  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415 - imports torch

    if options.scores and TASKS[condition.task].generates:
        raise ConditionError(f"--scores: predictions of {condition.task} have no probabilities.")


def echo_length_warnings(source: "Any") -> None:
    """Say on stderr how many inputs were cut or split because they were too long."""
    for sentence in source.pop_length_warnings().values():
        typer.echo(f"polyloom: {sentence}", err=True)


@contextmanager
def counting(shown: bool) -> Iterator[Callable[[int], None]]:
    """Show on stderr the number of lines so far, at a terminal."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where it is seen
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = SpinnerColumn(), TextColumn("{task.completed:,} lines"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("lines", total=None)
        yield lambda lines: progress.advance(bar, lines)
