"""What all benchmarks share: the command line, rounds in turn, memory, other processes, raw results."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import typer

WARMUP = 3  # rounds of training that are not counted
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
Times = dict[str, list[float]]

# -- the command line -------------------------------------------------------------------------------------------------

Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the raw results here.")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Rounds in which all variants take turns.")]
Tiny = Annotated[bool, typer.Option("--tiny", help="Smallest sizes, without data: to see that the benchmark runs.")]
PeerPython = Annotated[
    Path | None,
    typer.Option("--python", envvar="POLYLOOM_ADAPTERS_PYTHON", help="Python of the environment that has the peer."),
]


def make_app() -> typer.Typer:
    """Return the command line of a script. One with a single command has no subcommands."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def command(app: typer.Typer, doc: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command. Its help is the docstring, with its lines.

    Args:
        app: The command line.
        doc: Another text than the function's docstring.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        paragraphs = inspect.cleandoc(doc or function.__doc__ or "").split("\n\n")
        # click fills paragraphs, except those that begin with \b.
        return app.command(help="\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs))(function)

    return register


def use_one_thread() -> None:
    """Let torch compute in one thread: times are those of a core, and vary less."""
    import torch  # noqa: PLC0415 - not every benchmark needs it, and some measure memory

    torch.set_num_threads(1)


def write_results(results: Any, file: Path | None) -> None:
    """Write the raw results, if the command line names a file."""
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def report(results: Any, file: Path | None, *, summary: Any = None) -> None:
    """Print a summary, or all results, and write the raw results."""
    print(json.dumps(results if summary is None else summary, indent=1, ensure_ascii=False), flush=True)
    write_results(results, file)


# -- time -------------------------------------------------------------------------------------------------------------


def interleave(
    works: Mapping[str, Callable[[int], Any]],
    *,
    rounds: int,
    clock: Callable[[], float],
    warmup: int = 2,
    after_round: Callable[[int, dict[str, Any]], None] | None = None,
) -> Times:
    """Call functions in turn, round after round; return the seconds of each call.

    What slows the machine for a while slows all of them, so that the ratios of a round can be trusted.

    Args:
        works: Functions of the number of the round.
        rounds: Rounds that count.
        clock: `time.process_time` for CPU seconds, `time.perf_counter` for those of the wall.
        warmup: Rounds before them that do not count.
        after_round: Function that gets the number of each round and its results, outside of all times.
    """
    times: Times = {name: [] for name in works}
    for number in range(warmup + rounds):
        results = {}
        for name, work in works.items():
            started = clock()
            result = work(number)
            seconds = clock() - started
            if number >= warmup:
                times[name].append(seconds)
            if after_round:
                results[name] = result
            del result  # memory that one holds would be missing to the next
        if after_round:
            after_round(number, results)
    return times


def low(seconds: Sequence[float]) -> dict[str, float]:
    """Return the minimum and the 20th percentile: what a call costs when nobody else has the machine."""
    return {"minimum": min(seconds), "p20": float(np.percentile(seconds, 20))}


def ratios(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Return statistics of the ratios of two functions, round by round."""
    paired = np.array(over) / np.array(under)
    return {
        "median": float(np.median(paired)),
        "p20": float(np.percentile(paired, 20)),
        "min": float(paired.min()),
        "of minima": min(over) / min(under),
    }


# -- memory and processes ---------------------------------------------------------------------------------------------


def memory(kind: str) -> float:
    """Return megabytes of this process, by a line of /proc/self/status: VmHWM is the peak, RssAnon without files."""
    kilobytes = Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0]
    return 1024 * int(kilobytes) / 1e6


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module in a new process with one thread, whose memory nothing else has used."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ |= ONE_THREAD
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def run_polyloom(*arguments: object, **environment: str) -> None:
    """Run a command of polyloom in a process of one thread. What it prints goes to stderr."""
    command = [sys.executable, "-m", "polyloom", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | ONE_THREAD | environment)  # noqa: S603


class Peer:
    """A script in the environment of another library. It answers each line of JSON with a line of JSON.

    Args:
        python: The Python of that environment.
        script: A script of this folder, without its ending.
        *arguments: What the script gets.
    """

    def __init__(self, python: Path, script: str, *arguments: object) -> None:
        command = [str(python), str(Path(__file__).with_name(f"{script}.py")), *map(str, arguments)]
        # CTranslate2's packed matrices are experimental and off by default; say so, whatever the caller's environment.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CT2_USE_EXPERIMENTAL_PACKED_GEMM": "0"}
        self._process = subprocess.Popen(  # noqa: S603 - the Python that the caller names
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **question: Any) -> Any:
        """Return the answer to a question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("The process of the peer ended; its error is above.")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which ends it
