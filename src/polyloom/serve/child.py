"""A process with the models, as its parent sees it."""

import asyncio
import contextlib
import tempfile
from itertools import count
from pathlib import Path
from typing import Any, Self

from polyloom.errors import CLIENT_VISIBLE_ERRORS, PolyloomError, UnavailableError
from polyloom.serve.model_process import command
from polyloom.serve.wire import ClosedError, Message, receive, send

STARTING = 600.0  # seconds that loading may take
ENDING = 10.0  # seconds in which a process ends that has nothing left to do
_ERRORS = {kind.__name__: kind for kind in CLIENT_VISIBLE_ERRORS}


class Child:
    """A process with the models that has been started. It ends when its parent does.

    Attributes:
        closed: Set when the connection is lost: the process has died, or was stopped.
        info: What it serves, and its limits.
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
            UnavailableError: It could not load them; it has said why on stderr.
        """
        with tempfile.TemporaryDirectory(prefix="polyloom-") as folder:
            socket = Path(folder) / "models"
            # A session of its own: Ctrl-C is for the parent, which lets the process answer what it was asked.
            process = await asyncio.create_subprocess_exec(
                *command(settings | {"socket": str(socket)}), start_new_session=True
            )
            try:
                child = cls(process, *await _connect(socket, process))
                child.info = await child.ask("info")
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise
        return child

    async def ask(self, what: str, **about: Any) -> Message:
        """Ask the process, and wait for what it answers. To cancel this withdraws the question."""
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
        """Wait for the answers to everything that was asked, then end the process."""
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        self._writer.close()
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
        """Read answers until the connection is lost, then fail everything that waits for one."""
        with contextlib.suppress(ClosedError):
            while True:
                message = await receive(reader)
                future = self._waiting.get(message["id"])
                if future is None or future.done():
                    continue
                if "error" in message:
                    future.set_exception(_error(**message["error"]))
                else:
                    future.set_result(message["answer"])
        self.closed.set()
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError("the process with the models died. Try again in a few seconds."))


def _error(kind: str, message: str) -> PolyloomError:
    """Make an error of the other process again."""
    return _ERRORS.get(kind, PolyloomError)(message)


async def _connect(
    socket: Path, process: asyncio.subprocess.Process
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(int(STARTING / 0.05)):
        if process.returncode is not None:
            raise UnavailableError("the models could not be loaded; see the message above.")
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return await asyncio.open_unix_connection(socket)
        await asyncio.sleep(0.05)
    raise UnavailableError(f"the models were not loaded within {STARTING:g} seconds.")
