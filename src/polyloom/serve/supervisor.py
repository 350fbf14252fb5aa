"""Keep a process with the models alive: start it again if it dies, replace it by one that has loaded new weights."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from polyloom.errors import UnavailableError
from polyloom.io.access import allowed_paths
from polyloom.registry import loaded_code
from polyloom.serve.child import Child
from polyloom.serve.limits import Limits
from polyloom.serve.wire import Message

PAUSE = 1.0  # seconds before a process that died is started again; doubled each time that it dies at once
LONGEST_PAUSE = 60.0


class Supervisor:
    """The models in a process of their own.

    It has the `answer` of an engine, with plain data instead of an `Answer`. If the process dies, everything that waits
    for it fails at once, and another process is started.

    Args:
        runs: Folders of runs and exported adapters.
        limits: Limits of the engine.
        beams: Beams of translations. With 1, translations join and leave between steps. Default: those of the runs.
        threads: Threads of torch. Default: as many as torch thinks right.
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
        self.limits = limits or Limits()
        self.starts = 0
        self._settings: Message = {
            "runs": [str(Path(run).resolve()) if Path(run).exists() else str(run) for run in runs],
            "limits": asdict(self.limits), "beams": beams, "threads": threads, "allow": allowed_paths(),
            "code": loaded_code(), "adapters": adapters,
        }  # fmt: skip
        self._child: Child | None = None
        self._starting = asyncio.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, or one is being started."""
        return self._starting.locked() or not (self._child is None or self._child.closed.is_set())

    async def __aenter__(self) -> Self:
        """Start the process and wait until it has loaded its models."""
        self._child = await self._start()
        self._keeping = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the process. What waits is answered first."""
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        if self._child is not None:
            await self._child.stop()

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
        """Load the runs again in another process, which then takes the place of this one; nothing is lost.

        Returns:
            What is served from now on.

        Raises:
            UnavailableError: The runs could not be loaded; those of before are still served.
        """
        new = await self._start()
        old, self._child = self._child, new
        if old is not None:
            await old.stop()
        return new.info

    def _running(self) -> Child:
        if self._child is None:
            raise UnavailableError("the models are being loaded. Try again in a few seconds.")
        return self._child

    async def _start(self) -> Child:
        async with self._starting:
            self.starts += 1
            return await Child.start(self._settings)

    async def _keep_alive(self) -> None:
        """Start a process whenever there is none."""
        pause = PAUSE
        while True:
            child, begin = self._running(), time.monotonic()
            await child.closed.wait()
            if child is not self._child:  # it was replaced
                continue
            await child.kill()
            pause = PAUSE if time.monotonic() - begin > 10 * pause else min(2 * pause, LONGEST_PAUSE)
            while child is self._child:
                sys.stderr.write(f"The process with the models died. Another one is started in {pause:g} seconds.\n")
                await asyncio.sleep(pause)
                with contextlib.suppress(UnavailableError, OSError):
                    started = await self._start()
                    if child is self._child:
                        self._child = started
                    else:  # reloaded meanwhile
                        await started.stop()
                pause = min(2 * pause, LONGEST_PAUSE)
