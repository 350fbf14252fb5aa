"""``polyloom predict``: a filter from stdin to stdout."""

import sys
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, Literal, cast

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    condition: Annotated[str, typer.Argument(help="Task and language of the input, such as pos/tr.")],
    *,
    source: Annotated[
        Literal["text", "columns", "conllu", "jsonl"] | None, typer.Option("--input", help="Format of stdin.")
    ] = None,
    target: Annotated[
        Literal["columns", "conllu", "jsonl"] | None, typer.Option("--output", help="Format of stdout.")
    ] = None,
) -> None:
    r"""Answer what comes in on stdin, sentence by sentence and in order, as it comes.

    pos, ner and dep take one sentence per line with spaces between words (text), one word per line with a blank line
    after each sentence (columns), CoNLL-U (conllu), or JSON lines with "words" or "text" (jsonl). nli takes a premise,
    a tab and a hypothesis per line (columns), or JSON lines with these names. What comes out follows from what goes in.

    Example: echo "Kedi uyuyor ." | polyloom predict runs/first pos/tr
    """
    from polyloom.evaluate.streams import choose_formats, respond  # noqa: PLC0415 - imports torch
    from polyloom.runs import load_run  # noqa: PLC0415
    from polyloom.types import Condition  # noqa: PLC0415

    asked = Condition.parse(condition)
    formats = choose_formats(asked.task, source, target)
    loaded = load_run(run)
    loaded.model.task(asked.task)
    loaded.model.method.check_served(asked)
    if sys.stdin.isatty():
        typer.echo(f"Reading {formats[0]} from the terminal; Ctrl-D ends it.", err=True)
    stdin, stdout = cast("BufferedIOBase", sys.stdin.buffer), sys.stdout.buffer
    for text in respond(
        stdin, asked.task, formats=formats, answer=lambda records: loaded.answering.answers(records, asked)
    ):
        stdout.write(text.encode())
        stdout.flush()  # whoever waits for an answer gets it
