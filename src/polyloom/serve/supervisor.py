"""The process with the models, as the process with HTTP sees it: it is asked, kept alive, and replaced to reload.

The models have a process of their own so that their crash does not take HTTP with it, and so that HTTP answers while
their interpreter is busy with a batch. All of this module runs in the event loop of HTTP.
"""

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any, Self

from polyloom.errors import CLIENT_VISIBLE_ERRORS, PolyloomError, UnavailableError
from polyloom.io.access import allowed_paths
from polyloom.registry import loaded_code
from polyloom.serve.engine import Limits
from polyloom.serve.model_process import ClosedError, Message, receive, send

PAUSE = 1.0  # seconds before a process that died is started again; doubled each time that it dies at once
LONGEST_PAUSE = 60.0
STARTING = 600.0  # seconds that loading may take
ENDING = 10.0  # seconds in which a process ends that has nothing left to do
_ERRORS = {kind.__name__: kind for kind in CLIENT_VISIBLE_ERRORS}


class ModelProcess:
    """One process with the models, from its start to its end. It ends when this process does.

    Attributes:
        closed: Set when the connection is lost: the process has died, or was stopped.
        info: What it serves.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._writer = writer
        self.closed = asyncio.Event()
        self.info: Message = {}
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def start(cls, settings: Message) -> Self:
        """Start a process, and wait until it has loaded its models.

        Raises:
            UnavailableError: It could not load them; it wrote the reason to stderr.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C reaches this process alone, which lets the other one answer what was sent.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "polyloom.serve.model_process", json.dumps(settings),
                stdin=theirs.fileno(), start_new_session=True,
            )  # fmt: skip
        new = cls(process, *await asyncio.open_connection(sock=ours))
        try:
            async with asyncio.timeout(STARTING):
                new.info = await new.ask("info")  # is read once the models are loaded
        except BaseException as error:
            await new.kill()
            if isinstance(error, TimeoutError):
                raise UnavailableError(f"the models were not loaded within {STARTING:g} seconds.") from None
            if isinstance(error, UnavailableError):
                raise UnavailableError("the models could not be loaded; see the message above.") from None
            raise
        return new

    async def ask(self, what: str, **about: Any) -> Message:
        """Ask the process, and wait for its answer. Cancel this to withdraw the question."""
        if self.closed.is_set():
            raise UnavailableError("the models are being loaded. Try again in a few seconds.")
        number = next(self._numbers)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        send(self._writer, {"id": number, "ask": what, **about})
        try:
            return await future
        except asyncio.CancelledError:
            if not self.closed.is_set():
                send(self._writer, {"cancel": number})
            raise
        finally:
            del self._waiting[number]

    async def stop(self) -> None:
        """Wait for the answers to all questions, then end the process."""
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        self._writer.close()  # which ends it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING):
                await self.process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End the process at once, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read answers until the connection is lost, then fail all questions: otherwise they would wait for ever."""
        with contextlib.suppress(ClosedError):
            while True:
                message = await receive(reader)
                future = self._waiting.get(message["id"])
                if future is None or future.done():  # withdrawn
                    continue
                if "error" in message:
                    error = message["error"]
                    future.set_exception(_ERRORS.get(error["kind"], PolyloomError)(error["message"]))
                else:
                    future.set_result(message["answer"])
        self.closed.set()
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError("the process with the models died. Try again in a few seconds."))


class Supervisor:
    """The models in a process of their own.

    It has the `answer` of an engine, with plain data instead of an `Answer`. If the process dies, everything that waits
    for it fails at once, and another process is started.

    Args:
        runs: Folders of runs and exported adapters.
        limits: Limits of the engine; those of requests, which a server adds, are not its matter.
        beams: Beams of translations. With 1, translations join and leave between steps. Default: those of the runs.
        threads: Threads of torch. Default: as torch decides.
        adapters: Attributes of `AdapterFiles`, to write adapters for another server. Default: none are written.

    Attributes:
        starts: How often a process was started.
    """

    def __init__(
        self,
        runs: Sequence[str | Path],
        *,
        limits: Limits | None = None,
        beams: int | None = None,
        threads: int | None = None,
        adapters: Message | None = None,
    ) -> None:
        self.starts = 0
        self._settings: Message = {
            "runs": [str(Path(run).resolve()) if Path(run).exists() else str(run) for run in runs],
            "limits": {limit.name: getattr(limits or Limits(), limit.name) for limit in fields(Limits)},
            "beams": beams, "threads": threads, "allow": allowed_paths(),
            "code": loaded_code(), "adapters": adapters,
        }  # fmt: skip
        self._process: ModelProcess | None = None
        self._starting = asyncio.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, or one is being started."""
        return self._starting.locked() or not (self._process is None or self._process.closed.is_set())

    async def __aenter__(self) -> Self:
        """Start the process and wait until it has loaded its models."""
        self._process = await self._start()
        self._keeping = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the process. What waits is answered first."""
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        if self._process is not None:
            await self._process.stop()

    async def answer(self, condition: str, value: Any, *, caller: str = "", timeout: float | None = None) -> Message:
        """Predict one input; see `Engine.answer`."""
        return await self._running().ask("row", condition=condition, input=value, caller=caller, timeout=timeout)

    def info(self) -> Message:
        """Describe what is served."""
        return self._running().info

    async def counts(self) -> dict[str, int]:
        """Count what the engine has done so far, and what waits."""
        return await self._running().ask("counts") | {"starts": self.starts}

    async def check(self, condition: str) -> Message:
        """Raise an error unless a condition can be predicted."""
        return await self._running().ask("check", condition=condition)

    async def adapter(self, condition: str) -> Message:
        """Return the folder with the adapter of a condition; see `Engine.adapter`."""
        return await self._running().ask("adapter", condition=condition)

    async def canary(self) -> Message:
        """Predict a small input, as any other."""
        return await self._running().ask("canary")

    async def reload(self) -> Message:
        """Load the runs again in another process, which then takes the place of this one; no request is lost.

        Returns:
            What is served from now on.

        Raises:
            UnavailableError: The runs could not be loaded; the previous ones are still served.
        """
        new = await self._start()
        old, self._process = self._process, new  # further questions go to the new one
        if old is not None:
            await old.stop()
        return new.info

    def _running(self) -> ModelProcess:
        if self._process is None:
            raise UnavailableError("the models are being loaded. Try again in a few seconds.")
        return self._process

    async def _start(self) -> ModelProcess:
        async with self._starting:
            self.starts += 1
            return await ModelProcess.start(self._settings)

    async def _keep_alive(self) -> None:
        """Start another process whenever the present one dies."""
        pause = PAUSE
        while True:
            process, begin = self._running(), time.monotonic()
            await process.closed.wait()
            if process is not self._process:  # it was stopped: `reload` had replaced it
                continue
            await process.kill()
            # A process that dies soon, say for want of memory, would keep the machine busy with starts.
            pause = PAUSE if time.monotonic() - begin > 10 * pause else min(2 * pause, LONGEST_PAUSE)
            while process is self._process:
                sys.stderr.write(f"The process with the models died. Another one is started in {pause:g} seconds.\n")
                await asyncio.sleep(pause)
                with contextlib.suppress(UnavailableError, OSError):
                    new = await self._start()
                    if process is self._process:
                        self._process = new
                    else:  # `reload` was faster
                        await new.stop()
                pause = min(2 * pause, LONGEST_PAUSE)
