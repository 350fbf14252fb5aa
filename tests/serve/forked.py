"""Servers and processes with models that are forks: a new interpreter takes seconds to import torch."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from polyloom.serve import model_process
from tests.shared import in_child


@contextmanager
def forked_models() -> Iterator[None]:
    """Let processes with models be forks, also those of a process that is forked meanwhile."""
    start = asyncio.create_subprocess_exec

    async def fork(*command: str, **options: Any) -> asyncio.subprocess.Process:
        return await start("models", preexec_fn=in_child(model_process.main, command[-2:]), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", fork)
        yield
