"""Processes with models, forked from the one that starts them: a new interpreter takes seconds to import torch."""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from polyloom.serve import model_process


@contextmanager
def forked_models() -> Iterator[None]:
    """Let processes with models be forks; also those of a process that is forked meanwhile."""
    start = asyncio.create_subprocess_exec

    async def fork(*command: str, **options: Any) -> asyncio.subprocess.Process:
        def run() -> None:
            os.closerange(3, 1 << 12)  # as a new program has none; `Popen` waits until its own one is closed
            signal.set_wakeup_fd(-1)  # of the event loop of the process that starts this one
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            torch.set_num_threads(1)  # renews torch's pool, whose threads a fork does not have
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
            sys.argv = list(command[-2:])
            code = 1
            try:
                model_process.main()
                code = 0
            except SystemExit as end:
                if isinstance(end.code, str):
                    sys.stderr.write(end.code + "\n")
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)

        return await start("models", preexec_fn=run, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", fork)
        yield
