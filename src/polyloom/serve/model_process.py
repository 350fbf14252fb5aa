"""The process with the models: an engine that its parent, the process with HTTP, asks over a socket.

The socket is this process's standard input, so it closes when the parent dies, and then this process ends. Messages are
JSON, each after its length in four bytes. The parent sends ``{"id", "ask", …}``, where ``ask`` is ``row``, ``adapter``,
``info``, ``counts``, ``check`` or ``canary``, and ``{"cancel": id}`` when nobody waits for the answer any more. This
process sends ``{"id", "answer"}`` or ``{"id", "error"}``, with the kind and the message of the error, in any order.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError, PredictionError
from polyloom.io.access import allow_paths
from polyloom.registry import load_code
from polyloom.serve.adapter_files import AdapterFiles
from polyloom.serve.engine import Engine, Limits

MAX_BYTES = 1 << 28  # of a message; HTTP accepts no body that comes near it
Message = dict[str, Any]


class ClosedError(PolyloomError):
    """The other process closed the connection, or died."""


async def receive(reader: asyncio.StreamReader) -> Message:
    """Wait for the next message.

    Raises:
        ClosedError: There will be none.
    """
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_BYTES:
            raise ClosedError(f"a message of {size:,} bytes.")
        message: Message = json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ClosedError("the connection was closed.") from error
    return message


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send a message without waiting until the other process reads it; the limits of rows bound what is buffered."""
    content = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    writer.write(len(content).to_bytes(4, "big") + content)


async def answer_parent(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the parent, each question in a task of its own, until it closes the connection."""
    tasks: dict[int, asyncio.Task[None]] = {}

    async def reply(message: Message) -> None:
        answer: Message = {"id": message["id"]}
        try:
            answer["answer"] = await _answer(engine, message)
        except PolyloomError as error:
            answer["error"] = {"kind": type(error).__name__, "message": str(error)}
        except Exception as error:  # a mistake of ours; without an answer the caller would wait until its timeout
            traceback.print_exc()
            answer["error"] = {"kind": PredictionError.__name__, "message": f"{type(error).__name__}: {error}"}
        send(writer, answer)

    with contextlib.suppress(ClosedError):
        while True:
            message = await receive(reader)
            if "cancel" in message:
                if task := tasks.get(message["cancel"]):  # otherwise its answer is on its way
                    task.cancel()
            else:
                number = message["id"]
                tasks[number] = asyncio.create_task(reply(message))
                tasks[number].add_done_callback(lambda _, number=number: tasks.pop(number))  # type: ignore[misc]
    for task in list(tasks.values()):
        task.cancel()
    writer.close()


async def _answer(engine: Engine, message: Message) -> Message:
    """Return what one message asks for, as plain data."""
    match message["ask"]:
        case "row":
            # JSON has no tuples: a list is the words of a sentence, or the texts of a pair.
            value = message["input"]
            answer = await engine.answer(
                message["condition"], tuple(value) if isinstance(value, list) else value, caller=message["caller"],
                timeout=message["timeout"],
            )  # fmt: skip
            return answer.to_dict()
        case "adapter":
            return await engine.adapter(message["condition"])
        case "check":
            return {"model": engine.find(Condition.parse(message["condition"])).name}
        case "canary":
            return (await engine.canary()).to_dict()
        case "counts":
            caches = [model.run.predictor.cache for model in engine.models]
            return asdict(engine.counts) | {
                "waiting": len(engine.queue), "in_flight": engine.worker.rows_in_flight,
                "resident": sum(map(len, caches)), "generated": sum(cache.num_computed for cache in caches),
            }  # fmt: skip
        case "info":
            return {"models": [model.describe() for model in engine.models]}
    raise ValueError(message["ask"])


async def _run_engine(settings: Message) -> None:
    """Load the runs, then answer the parent until it closes the connection."""
    files = settings["adapters"]
    adapters = AdapterFiles(Path(files["folder"]), files["base_name"], files["max_mb"]) if files else None
    engine = Engine(*settings["runs"], limits=Limits(**settings["limits"]), beams=settings["beams"], adapters=adapters)
    async with engine:
        parent = socket.socket(fileno=os.dup(sys.stdin.fileno()))
        await answer_parent(engine, *await asyncio.open_connection(sock=parent))


def main() -> None:
    """Run with settings from the first argument."""
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    allow_paths(settings["allow"])
    try:
        for file in settings["code"]:
            load_code(file)
        asyncio.run(_run_engine(settings))
    except PolyloomError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
