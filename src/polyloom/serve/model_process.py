"""The process that has the models: an engine that is asked through a Unix socket.

Messages to it: ``{"id", "ask", …}``, with ``row``, ``adapter``, ``info``, ``counts``, ``check`` or ``canary`` as what
is asked, and ``{"cancel": id}``, which withdraws it. Messages from it: ``{"id", "answer"}`` or ``{"id", "error"}``,
with the kind and the message of the error. It ends when its parent has gone.
"""

import asyncio
import contextlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError, PredictionError
from polyloom.io.access import allow_paths
from polyloom.registry import load_code
from polyloom.serve.adapter_files import AdapterFiles
from polyloom.serve.engine import Engine
from polyloom.serve.limits import Limits
from polyloom.serve.wire import ClosedError, Message, receive, send


async def serve_socket(path: Path, engine: Engine) -> None:
    """Answer the one connection of the parent until it is closed."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Connection(engine, writer).read(reader)
        finally:
            writer.close()
            if not done.done():
                done.set_result(None)

    server = await asyncio.start_unix_server(connected, path)
    async with server:
        await done


class _Connection:
    def __init__(self, engine: Engine, writer: asyncio.StreamWriter) -> None:
        self.engine, self.writer = engine, writer
        self.asked: dict[int, asyncio.Task[None]] = {}

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Read messages until the connection is closed, then give up what was asked."""
        with contextlib.suppress(ClosedError):
            while True:
                message = await receive(reader)
                if "cancel" in message:
                    if task := self.asked.get(message["cancel"]):
                        task.cancel()
                else:
                    self.asked[message["id"]] = task = asyncio.create_task(self._answer(message))
                    task.add_done_callback(lambda _, number=message["id"]: self.asked.pop(number))  # type: ignore[misc]
        for task in list(self.asked.values()):
            task.cancel()

    async def _answer(self, message: Message) -> None:
        reply: Message = {"id": message["id"]}
        try:
            reply["answer"] = await self._asked(message)
        except PolyloomError as error:
            reply["error"] = {"kind": type(error).__name__, "message": str(error)}
        except Exception as error:  # a mistake of ours; whoever asked must not wait for ever
            traceback.print_exc()
            reply["error"] = {"kind": PredictionError.__name__, "message": f"{type(error).__name__}: {error}"}
        send(self.writer, reply)

    async def _asked(self, message: Message) -> Message:
        if message["ask"] == "info":
            return {"models": [one.describe() for one in self.engine.models], "limits": vars(self.engine.limits)}
        if message["ask"] == "counts":
            return count(self.engine)
        if message["ask"] == "check":
            return {"model": self.engine.find(Condition.parse(message["condition"])).name}
        if message["ask"] == "canary":
            return (await self.engine.canary()).to_dict()
        if message["ask"] == "adapter":
            return await self.engine.adapter(message["condition"])
        value, timeout = _as_input(message["input"]), message["timeout"]
        answer = await self.engine.answer(message["condition"], value, caller=message["caller"], timeout=timeout)
        return answer.to_dict()


def _as_input(value: Any) -> Any:
    """JSON has no tuples: a list is the words of a sentence, or the texts of a pair."""
    return tuple(value) if isinstance(value, list) else value


def count(engine: Engine) -> Message:
    """Count what an engine has done so far, and what it is doing now."""
    caches = [model.run.predictor.cache for model in engine.models]
    now = {"waiting": len(engine.queue), "in_flight": engine.worker.rows_in_flight}
    now |= {"resident": sum(map(len, caches)), "generated": sum(cache.made for cache in caches)}
    return vars(engine.counts) | now


async def _main(settings: Message) -> None:
    where = settings["adapters"]
    adapters = AdapterFiles(Path(where["folder"]), where["base_name"], where["max_mb"]) if where else None
    engine = Engine(*settings["runs"], limits=Limits(**settings["limits"]), beams=settings["beams"], adapters=adapters)
    async with engine:
        await serve_socket(Path(settings["socket"]), engine)


def main() -> None:
    """Run with settings from the first argument."""
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    allow_paths(settings["allow"])
    try:
        for file in settings["code"]:
            load_code(file)
        asyncio.run(_main(settings))
    except PolyloomError as error:
        sys.exit(f"error: {error}")


def command(settings: Message) -> Sequence[str]:
    """Return the command that starts such a process."""
    return [sys.executable, "-m", "polyloom.serve.model_process", json.dumps(settings)]


if __name__ == "__main__":
    main()
