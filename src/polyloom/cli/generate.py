"""``polyloom generate``: continue texts, or chat, with a decoder."""

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyloom.cli.options import Checkpoint
from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.workflows.run import Run

TOGETHER = 64  # prompts that share batches


def generate(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of exported adapters.")],
    condition: Annotated[str, typer.Argument(help="Task and language, such as lm/sw or chat/sw.")],
    *,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens that are generated, at most.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sample with this temperature. 0: take the most probable token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help='Write JSON lines with "prompt" and "text".')] = False,
    checkpoint: Checkpoint = None,
) -> None:
    """Continue each line of stdin (lm), or answer it (chat).

    At a terminal, chat is a conversation: each answer depends on all messages before it. Ctrl-D ends it.

    Example: echo "Habari ya" | polyloom generate runs/swahili lm/sw
    """
    from polyloom.workflows.run import load  # noqa: PLC0415 - imports torch

    loaded = load(run, checkpoint=checkpoint)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {}
    options = {"max_new_tokens": max_new_tokens, "seed": seed, **sampling}
    if sys.stdin.isatty() and loaded.model.task(condition.partition("/")[0]).kind == "conversation":
        _converse(loaded, condition, options)
        return
    prompts = (line.rstrip("\n") for line in sys.stdin if line.strip())
    while batch := list(islice(prompts, TOGETHER)):
        for prompt, text in zip(batch, loaded.generate(batch, condition, **options), strict=True):
            print(to_json({"prompt": prompt, "text": text}) if as_json else text, flush=True)


def _converse(run: "Run", condition: str, options: dict[str, Any]) -> None:
    messages: list[dict[str, str]] = []
    while True:
        print("> ", end="", flush=True)
        if not (line := sys.stdin.readline()):
            print()
            return
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.strip()})
        answer = run.generate(tuple(messages), condition, **options)
        messages.append({"role": "assistant", "content": answer})
        print(answer, flush=True)
