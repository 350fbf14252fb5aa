"""How fast an engine and a server answer, and what they do under too much load.

    python benchmarks/serving.py --json benchmarks/results/serving.json

The model is Hyper-X with a backbone of the size of XLM-R base (12 layers, 768 wide) and random weights: 2,500 languages
and four tasks are 10,000 conditions. Rows are 8 to 24 words. The load is open loop: rows arrive at random moments that
do not depend on answers, and latency counts from the moment at which a row was meant to be sent. Rates are shares of
the engine's capacity, which is measured first with 64 callers. An engine, a server of the same run and, if its Python
is given, a loop around `adapters` are measured in turns; what HTTP adds is the difference for the same row, asked for
alone. The load generator runs beside the server and takes a part of the machine.
"""

# ruff: noqa: S311, S603, S607 - nothing is secret here, and all commands are our own

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `polyloom` does: fresh memory comes in 2 MB pages
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from tests.tiny_run import WORDS, tiny_recipe

from polyloom.conditions import Condition
from polyloom.errors import OverloadedError, PolyloomError
from polyloom.rundir import RunDir
from polyloom.serve import Engine, Limits
from polyloom.workflows.add_language import write_extended_run
from polyloom.workflows.run import load
from polyloom.workflows.train import train

TASKS = ("pos", "ner", "dep", "nli")
CALLERS = 64
KEPT = 2.0  # seconds that a connection may be idle; the server closes it after five
Row = tuple[str, str | tuple[str, ...]]  # condition and input
Ask = Callable[[Row], Awaitable[Any]]
Peer = Callable[[str], float]  # answers rows of a kind for some seconds; rows per second


@dataclass(frozen=True)
class Size:
    """The size of the model, and of the measurements: seconds of each, and how many rounds of all."""

    languages: int
    layers: int
    width: int
    seconds: float
    rounds: int


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


def mostly_hot(languages: int) -> Callable[[random.Random], str]:
    """Draw one language 99 times of 100, and otherwise one that was never asked for."""
    cold = iter(f"{task}/l{number}" for task in TASKS for number in range(1, languages))
    return lambda draw: next(cold) if draw.random() < 0.01 else "pos/l0"


FEW = zipf(64, ["pos"])  # as many adapters as the peer has
PEER_KINDS = {"one": one, "few": FEW}


# -- load -------------------------------------------------------------------------------------------------------------


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
    """Send rows at random moments; return condition, latency and outcome of each."""
    draw, found, tasks = random.Random(1), list[dict[str, Any]](), list[asyncio.Task[None]]()

    async def send(row: Row, meant: float) -> None:
        try:
            await ask(row)
            outcome = "answered"
        except PolyloomError as error:
            outcome = type(error).__name__
        found.append({"condition": row[0], "seconds": time.monotonic() - meant, "outcome": outcome})

    moment = start = time.monotonic()
    while moment < start + seconds:
        await asyncio.sleep(max(0.0, moment - time.monotonic()))
        tasks.append(asyncio.create_task(send(next(rows), moment)))
        moment += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Count, median and 99th percentile of latencies, in milliseconds."""
    times = sorted(1e3 * one["seconds"] for one in found)
    if not times:
        return {"count": 0}
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


# -- measurements -----------------------------------------------------------------------------------------------------


def first_use(run: Path, rounds: int) -> dict[str, float]:
    """Milliseconds until the weights of a condition that was never asked for are ready (G5)."""
    cache, times = load(run, allow=["/"]).predictor.cache, []
    for number in range(rounds + 2):
        start = time.perf_counter()
        cache.rows([Condition("pos", f"l{number}")])
        times.append(1e3 * (time.perf_counter() - start))
    return {"p50_ms": statistics.median(times[2:]), "p99_ms": sorted(times[2:])[int(0.99 * (rounds - 1))]}


async def in_turns(run: Path, http: Ask, peer: Peer | None, size: Size) -> dict[str, Any]:
    """Measure an engine, a server of the same run and a peer in turns; then the engine with 1 % of cold languages."""
    loaded = load(run, allow=["/"])
    rates = defaultdict[str, list[float]](list)
    alone: dict[str, list[float]] = {"engine": [], "http": []}
    async with Engine(loaded, limits=Limits(timeout=600.0)) as engine:

        async def ask(row: Row) -> None:
            await engine.answer(*row)

        sources = {
            "one": (ask, rows_of(one, 0)),
            "few": (ask, rows_of(FEW, 0)),
            "zipf": (ask, rows_of(zipf(size.languages), 0)),
            "http": (http, rows_of(one, 0)),
        }
        for asked, rows in (sources["zipf"], sources["http"]):  # fills the cache, and memory
            await closed(asked, rows, size.seconds)
        if peer:
            peer("few")
        for _ in range(size.rounds):
            for name, (asked, rows) in sources.items():
                rates[name].append(await closed(asked, rows, size.seconds))
            if peer:
                for name in PEER_KINDS:
                    rates[f"adapters_{name}"].append(peer(name))
        capacity = statistics.median(rates["one"])
        for row in itertools.islice(rows_of(one, 3), 20 * size.rounds):
            for name, asked in (("engine", ask), ("http", http)):
                start = time.perf_counter()
                await asked(row)
                alone[name].append(1e3 * (time.perf_counter() - start))
        loaded.predictor.cache.clear()
        found = await open_loop(
            ask, rows_of(mostly_hot(size.languages), 2), rate=0.5 * capacity, seconds=16 * size.seconds
        )
    hot = [one for one in found if one["condition"] == "pos/l0"]
    cold = [one for one in found if one["condition"] != "pos/l0"]
    against = {
        f"{name}_over_one": statistics.median(a / b for a, b in zip(rates[name], rates["one"], strict=True))
        for name in rates
        if name != "one"
    }
    return {
        "rows_per_second": rates, **against, "hot": summary(hot), "cold": summary(cold),
        "one_row_p50_ms": {name: statistics.median(times) for name, times in alone.items()},
        "http_adds_ms": statistics.median(b - a for a, b in zip(alone["engine"], alone["http"], strict=True)),
    }  # fmt: skip


async def overload(ask: Ask, process: int, *, peak: float, seconds: float) -> dict[str, Any]:
    """Send three times as many rows as a server can answer."""
    memory, start = [memory_of(process)], time.monotonic()
    found = await open_loop(ask, rows_of(one, 5), rate=3 * peak, seconds=seconds)
    taken = time.monotonic() - start
    memory.append(memory_of(process))
    answered = [one for one in found if one["outcome"] == "answered"]
    refused = [one for one in found if one["outcome"] == OverloadedError.__name__]
    return {
        "sent": len(found), "answered": summary(answered), "refused": summary(refused),
        "failed": len(found) - len(answered) - len(refused),
        "goodput": len(answered) / taken / peak, "megabytes": memory,
    }  # fmt: skip


async def measure(run: Path, port: int, process: int, peer: Peer | None, size: Size) -> dict[str, Any]:
    """Measure an engine and a server, then the server with too many rows."""
    http = Http(port)
    found = await in_turns(run, http.ask, peer, size)
    peak = statistics.median(found["rows_per_second"]["http"])
    return found | {"overload": await overload(http.ask, process, peak=peak, seconds=4 * size.seconds)}


def memory_of(process: int) -> float:
    """Megabytes of a process and its children."""
    children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=True).stdout.split()
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in (process, *children))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def server(run: Path, **options: int) -> Iterator[tuple[int, int]]:
    """Start a server, yield its port and its process, and stop it."""
    port = 18_000 + os.getpid() % 1000
    settings = {"port": port, "max-waiting": 256, "allow-path": "/", **options}
    command = [
        sys.executable,
        "-m",
        "polyloom",
        "serve",
        str(run),
        *(f"--{key}={one}" for key, one in settings.items()),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        ready = ["curl", "--silent", "--fail", f"localhost:{port}/readyz"]
        while subprocess.run(ready, check=False, capture_output=True).returncode:
            time.sleep(0.5)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def adapters_peer(python: str, run: Path, size: Size) -> Iterator[Peer]:
    """Start a micro-batching loop around `adapters`, and yield what lets it answer rows; see serving_adapters.py."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.parent / "backbone")
    rows = {
        kind: [
            (condition.partition("/")[2], len(tokenizer(" ".join(words))["input_ids"]))
            for condition, words in itertools.islice(rows_of(draw, 0), 2000)
        ]
        for kind, draw in PEER_KINDS.items()
    }
    file = run.parent / "rows.json"
    file.write_text(json.dumps(rows))
    options = [f"--{name}={getattr(size, name)}" for name in ("layers", "width", "seconds")]
    command = [python, str(Path(__file__).with_name("serving_adapters.py")), str(file), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        requests, answers = process.stdin, process.stdout

        def answer(kind: str) -> float:
            requests.write(f"{kind}\n")
            requests.flush()
            return float(answers.readline())

        yield answer


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and little time, for tests")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--adapters-python", help="Python of a virtual environment with adapters 1.3.0, to compare")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = Size(80, 2, 64, 1.0, 1) if options.quick else Size(2500, 12, 768, 10.0, 5)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), languages=size.languages, layers=size.layers, width=size.width)
        found: dict[str, Any] = {**asdict(size), "threads": options.threads}
        found["first_use"] = first_use(run, min(200, size.languages - 2))
        with ExitStack() as stack:
            port, process = stack.enter_context(server(run, threads=options.threads))
            peer = None
            if options.adapters_python:
                peer = stack.enter_context(adapters_peer(options.adapters_python, run, size))
            found |= asyncio.run(measure(run, port, process, peer, size))
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
