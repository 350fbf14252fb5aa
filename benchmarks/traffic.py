"""Traffic for servers: a run with many languages, rows of its conditions, callers, and a server to ask."""

# ruff: noqa: S311, S603, S607 - nothing is secret here, and all commands are our own

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from tests.tiny_run import WORDS, tiny_recipe

from polyloom.errors import OverloadedError, PolyloomError
from polyloom.rundir import RunDir
from polyloom.workflows.add_language import write_extended_run
from polyloom.workflows.train import train

TASKS = ("pos", "ner", "dep", "nli")
CALLERS = 64
KEPT = 2.0  # seconds that a connection may be idle; the server closes it after five
Row = tuple[str, str | tuple[str, ...]]  # condition and input
Ask = Callable[[Row], Awaitable[Any]]


# -- the run and its rows ---------------------------------------------------------------------------------------------


def make_run(folder: Path, *, languages: int, layers: int, width: int) -> Path:
    """Train one step, and add languages with random embeddings."""
    tiny_recipe(folder)
    config = transformers.BertConfig.from_pretrained(folder / "backbone")
    config.update({
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
    })  # fmt: skip
    transformers.utils.logging.disable_progress_bar()
    transformers.BertForMaskedLM(config).save_pretrained(folder / "backbone")
    recipe = json.loads(tiny_recipe(folder, tasks=("mlm", *TASKS)).read_text())
    recipe["method"] = {"name": "hyperx", "adapter_size": 48, "projection_size": 192, "hidden_size": 192}
    recipe["train"] |= {"steps": 1, "rows_per_batch": 4}
    (folder / "large.yaml").write_text(json.dumps(recipe))
    run, names = train(folder / "large.yaml", folder / "small"), [f"l{number}" for number in range(languages)]
    for name in names:
        run.model.method.add_language(name)
    extended = replace(run.loaded, trained_on=[*run.trained_on, *(f"mlm/{name}" for name in names)])
    write_extended_run(extended, RunDir(folder / "run"), {}, languages=(*run.recipe.languages, *names))
    return folder / "run"


def rows_of(conditions: Callable[[random.Random], str], seed: int) -> Iterator[Row]:
    """Yield rows of random lengths for ever."""
    draw = random.Random(seed)
    while True:
        condition = conditions(draw)
        words = tuple(draw.choices(WORDS, k=draw.randint(8, 24)))
        yield condition, (" ".join(words[::2]), " ".join(words[1::2])) if condition.startswith("nli") else words


def one(_: random.Random) -> str:
    """Always the same condition."""
    return "pos/l0"


def zipf(languages: int, tasks: Sequence[str] = TASKS) -> Callable[[random.Random], str]:
    """Draw conditions by Zipf's law: the frequency of the n-th is 1/n."""
    names = [f"{task}/l{number}" for number in range(languages) for task in tasks]
    random.Random(0).shuffle(names)
    total, cumulative = 0.0, []
    for rank in range(len(names)):
        total += 1 / (rank + 1)
        cumulative.append(total)
    return lambda draw: draw.choices(names, cum_weights=cumulative)[0]


# -- callers ----------------------------------------------------------------------------------------------------------


async def closed(ask: Ask, rows: Iterator[Row], seconds: float) -> float:
    """Let callers ask one row after another; return answers per second, until the last one is answered."""
    answered, start = 0, time.monotonic()

    async def caller() -> None:
        nonlocal answered
        while time.monotonic() < start + seconds:
            await ask(next(rows))
            answered += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return answered / (time.monotonic() - start)


async def open_loop(ask: Ask, rows: Iterator[Row], *, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Send rows at random moments; return condition, latency and outcome of each.

    Latency counts from the moment at which a row was due: a server that is late must not slow the load down.
    """
    draw, answers, tasks = random.Random(1), list[dict[str, Any]](), list[asyncio.Task[None]]()

    async def send(row: Row, meant: float) -> None:
        try:
            await ask(row)
            outcome = "answered"
        except PolyloomError as error:
            outcome = type(error).__name__
        answers.append({"condition": row[0], "seconds": time.monotonic() - meant, "outcome": outcome})

    moment = start = time.monotonic()
    while moment < start + seconds:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))
        tasks.append(asyncio.create_task(send(next(rows), moment)))
        moment += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    return answers


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return count, median and 99th percentile of latencies, in milliseconds."""
    times = sorted(1e3 * answer["seconds"] for answer in answers)
    if not times:
        return {"count": 0, "p50_ms": None, "p99_ms": None}
    return {"count": len(times), "p50_ms": statistics.median(times), "p99_ms": times[int(0.99 * (len(times) - 1))]}


class Http:
    """Connections to a server, as many as there are requests at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, row: Row) -> None:
        """Ask for one row; raise an error if there is no room for it, or another one if it has no prediction."""
        reader, writer = await self._connection()
        body = json.dumps({"rows": [{"condition": row[0], "input": row[1]}]}).encode()
        head = f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        size = int(answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = json.loads(await reader.readexactly(size))
        self.idle.append((time.monotonic(), reader, writer))
        (result,) = content.get("results", [content])
        if "prediction" not in result:
            status = result["error"]["status"]
            raise (OverloadedError if status == OverloadedError.status else PolyloomError)(str(status))

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection that was used last, unless the server may have closed it, or a new one."""
        while self.idle:
            used, reader, writer = self.idle.pop()
            if time.monotonic() - used < KEPT:
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port)


# -- the server -------------------------------------------------------------------------------------------------------


def memory_of(process: int) -> float:
    """Return the megabytes of a process and its children."""
    children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=True).stdout.split()
    pages = sum(int(Path(f"/proc/{number}/statm").read_text().split()[1]) for number in (process, *children))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def server(run: Path, **changed: int) -> Iterator[tuple[int, int]]:
    """Start a server, yield its port and its process, and stop it."""
    port = 18_000 + os.getpid() % 1000
    settings = {"port": port, "max-waiting": 256, "allow-path": "/", **changed}
    options = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "polyloom", "serve", str(run), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        ready = ["curl", "--silent", "--fail", f"localhost:{port}/readyz"]
        while subprocess.run(ready, check=False, capture_output=True).returncode:
            time.sleep(0.5)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()
