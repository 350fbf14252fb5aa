"""Engines and servers: how fast they answer, with what load, on how many replicas, and after hours.

The model of `engine`, `replicas` and `soak` is Hyper-X with random weights. Rows are 8 to 24 words. Load generators run
beside the server and take a part of the machine.
"""

# ruff: noqa: S311 - nothing is secret here

import asyncio
import itertools
import json
import lzma
import os
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

from benchmarks.corpora import write_bitext
from benchmarks.measure import (
    Json,
    Peer,
    PeerPython,
    Rounds,
    Tiny,
    command,
    make_app,
    report,
    run_polyloom,
    use_one_thread,
)
from benchmarks.traffic import (
    TASKS,
    Ask,
    Http,
    Row,
    closed,
    make_run,
    memory_of,
    one,
    open_loop,
    rows_of,
    server,
    summary,
    zipf,
)
from polyloom.conditions import Condition
from polyloom.data.catalog import data_root
from polyloom.errors import OverloadedError
from polyloom.serve import Engine, Limits
from polyloom.workflows.run import load

app = make_app()
FEW = zipf(64, ["pos"])  # as many adapters as the peer has
PEER_KINDS = {"one": one, "few": FEW}
ENGLISH, OTHERS = "eng", ("deu", "ita", "nld", "por")
SHORT = 3  # sentences for every verse
WINDOW = 10.0  # seconds of a window of the soak test
DISTURBED = 0.02  # share of the processors' time that others took
Pair = tuple[str, str]


# -- one machine: an engine, a server, a peer -------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """The size of the model, and of the measurements: seconds of each, and how many rounds of all."""

    languages: int
    layers: int
    width: int
    seconds: float
    rounds: int


@command(app)
def engine(
    *,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    python: PeerPython = None,
    rounds: Rounds = 5,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """How fast an engine and a server answer, and what they do under too much load.

        python -m benchmarks.serving engine --json benchmarks/results/serving_engine.json

    The backbone has the size of XLM-R base (12 layers, 768 wide): 2,500 languages and four tasks are 10,000 conditions.
    The load is open loop: rows arrive at random moments that do not depend on answers, and latency counts from the
    moment at which a row was due. Rates are shares of the engine's capacity, which is measured first with 64 callers.
    An engine, a server of the same run and, if its Python is given, a loop around `adapters` are measured in turns;
    what HTTP adds is the difference for the same row, asked for alone.
    """
    torch.set_num_threads(threads)
    size = Size(80, 2, 64, 0.2, rounds) if tiny else Size(2500, 12, 768, 10.0, rounds)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        run = make_run(Path(folder), languages=size.languages, layers=size.layers, width=size.width)
        results: dict[str, Any] = {**asdict(size), "threads": threads}
        results["first_use"] = first_use(run, min(200, size.languages - 2))
        port, process = stack.enter_context(server(run, threads=threads))
        peer = stack.enter_context(adapters_peer(python, run, size)) if python else None
        http = Http(port).ask
        results |= asyncio.run(in_turns(run, http, peer, size))
        peak = statistics.median(results["rows_per_second"]["http"])
        results["overload"] = asyncio.run(overload(Http(port).ask, process, peak=peak, seconds=4 * size.seconds))
    report(results, file)


def first_use(run: Path, rounds: int) -> dict[str, float]:
    """Return milliseconds until the weights of a condition that was never asked for are ready (G5)."""
    cache, times = load(run, allow=["/"]).predictor.cache, []
    for number in range(rounds + 2):
        start = time.perf_counter()
        cache.rows([Condition("pos", f"l{number}")])
        times.append(1e3 * (time.perf_counter() - start))
    return {"p50_ms": statistics.median(times[2:]), "p99_ms": sorted(times[2:])[int(0.99 * (rounds - 1))]}


def adapters_peer(python: Path, run: Path, size: Size) -> Peer:
    """Start a micro-batching loop around `adapters` that answers the rows of the engine."""
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
    return Peer(python, "peer_adapters", file, *options)


def mostly_hot(languages: int) -> Callable[[random.Random], str]:
    """Draw one language 99 times of 100, and otherwise one that was never asked for."""
    cold = iter(f"{task}/l{number}" for task in TASKS for number in range(1, languages))
    return lambda draw: next(cold) if draw.random() < 0.01 else "pos/l0"


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
        for send, rows in (sources["zipf"], sources["http"]):  # fills the cache, and memory
            await closed(send, rows, size.seconds)
        if peer:
            peer.ask(kind="few")
        for _ in range(size.rounds):
            for name, (send, rows) in sources.items():
                rates[name].append(await closed(send, rows, size.seconds))
            if peer:
                for name in PEER_KINDS:
                    rates[f"adapters_{name}"].append(peer.ask(kind=name))

        # One row at a time: what HTTP adds.
        for row in itertools.islice(rows_of(one, 3), 20 * size.rounds):
            for name, send in (("engine", ask), ("http", http)):
                start = time.perf_counter()
                await send(row)
                alone[name].append(1e3 * (time.perf_counter() - start))

        loaded.predictor.cache.clear()
        rate = 0.5 * statistics.median(rates["one"])
        answers = await open_loop(ask, rows_of(mostly_hot(size.languages), 2), rate=rate, seconds=16 * size.seconds)
    against = {
        f"{name}_over_one": statistics.median(a / b for a, b in zip(rates[name], rates["one"], strict=True))
        for name in rates
        if name != "one"
    }
    return {
        "rows_per_second": rates, **against,
        "hot": summary([answer for answer in answers if answer["condition"] == "pos/l0"]),
        "cold": summary([answer for answer in answers if answer["condition"] != "pos/l0"]),
        "one_row_p50_ms": {name: statistics.median(times) for name, times in alone.items()},
        "http_adds_ms": statistics.median(b - a for a, b in zip(alone["engine"], alone["http"], strict=True)),
    }  # fmt: skip


async def overload(ask: Ask, process: int, *, peak: float, seconds: float) -> dict[str, Any]:
    """Send three times as many rows as a server can answer."""
    memory, start = [memory_of(process)], time.monotonic()
    answers = await open_loop(ask, rows_of(one, 5), rate=3 * peak, seconds=seconds)
    taken = time.monotonic() - start
    memory.append(memory_of(process))
    answered = [answer for answer in answers if answer["outcome"] == "answered"]
    refused = [answer for answer in answers if answer["outcome"] == OverloadedError.__name__]
    return {
        "sent": len(answers), "answered": summary(answered), "refused": summary(refused),
        "failed": len(answers) - len(answered) - len(refused),
        "goodput": len(answered) / taken / peak, "megabytes": memory,
    }  # fmt: skip


# -- replicas ---------------------------------------------------------------------------------------------------------


@command(app)
def replicas(
    *,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 20.0,
    rounds: Rounds = 3,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """How many rows two replicas on Ray answer, against one, and against the same server without Ray.

        RAY_AUTH_MODE=disabled python -m benchmarks.serving replicas --json benchmarks/results/serving_replicas.json

    The model has the size of XLM-R base; 64 callers ask one row after another over HTTP. Every replica has one thread.
    The callers and Ray's proxy run on the same machine and take a part of it, so two replicas need more than two cores
    to be twice as fast.
    """
    import ray  # noqa: PLC0415 - the others need no Ray
    from ray import serve  # noqa: PLC0415

    from polyloom.serve.ray import NAME, build_application  # noqa: PLC0415
    from polyloom.serve.web.server import ServerSettings  # noqa: PLC0415

    size = Size(20, 2, 64, 0.3, rounds) if tiny else Size(2500, 12, 768, seconds, rounds)
    port, rates = 19_000 + os.getpid() % 1000, dict[str, list[float]](alone=[], one=[], two=[])

    def rate(port: int) -> float:
        async def measure() -> float:
            http, rows = Http(port), rows_of(zipf(size.languages), 0)
            await closed(http.ask, rows, size.seconds / 2)  # fills the caches
            return await closed(http.ask, rows, size.seconds)

        return asyncio.run(measure())

    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), languages=size.languages, layers=size.layers, width=size.width)
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        settings = ServerSettings(runs=[str(run)], threads=1, allow_path=["/"])
        for _ in range(rounds):
            with server(run, threads=1) as (port_alone, _):
                rates["alone"].append(rate(port_alone))
            for name, count in (("one", 1), ("two", 2)):
                serve.run(build_application(settings, replicas=count), name=NAME)
                rates[name].append(rate(port))
            serve.delete(NAME)
        ray.shutdown()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    results = {
        "cores": os.cpu_count(), "rows_per_second": rates, "two_over_one": medians["two"] / medians["one"],
        "ray_over_alone": medians["one"] / medians["alone"],
    }  # fmt: skip
    report(results, file)


# -- translation ------------------------------------------------------------------------------------------------------


@command(app)
def translation(  # noqa: PLR0913 - options of a command
    folder: Annotated[
        Path | None, typer.Option(help="Where the translator is, or is made. Default: temporary.")
    ] = None,
    *,
    data: Annotated[Path | None, typer.Option(help="Folder with the corpora. Default: POLYLOOM_DATA.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 500,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 15.0,
    rounds: Rounds = 5,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """What in-flight batching gains: translations of sentences as they come, short ones and long ones mixed.

        python -m benchmarks.serving translation --data DIR --json benchmarks/results/serving_translation.json

    A small translator (transformer-mini with hyper-adapters, English with four languages) is trained on Tatoeba's
    sentences and on verses of the Bible, which are four times as long, until it ends its translations where a
    translation ends. Then an engine answers held-out ones of all eight directions, three sentences to one verse: in
    flight, and batch by batch. Both give the same translations.
    """
    use_one_thread()
    if tiny:
        steps, seconds = 10, 0.5
    with tempfile.TemporaryDirectory() as temporary:
        folder = folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if tiny:
            corpora = write_bitext(folder, 200, ENGLISH, OTHERS)
            held_out = {language: read_pairs(folder / f"{language}.tsv") for language in OTHERS}
        else:
            corpora = {}
            for language in OTHERS:
                pairs = sentences_and_verses(data_root(data), language, "train")
                (folder / f"{language}.tsv").write_text("".join("\t".join(pair) + "\n" for pair in pairs))
                corpora[language] = f"{folder / language}.tsv#{ENGLISH},{language}"
            held_out = {language: sentences_and_verses(data_root(data), language, "test") for language in OTHERS}
        run = train_translator(folder, corpora, steps=steps, pieces=400 if tiny else 4000)
        results = asyncio.run(in_flight_and_batches(run, held_out, seconds=seconds, rounds=rounds))
    report(results, file)


def read_pairs(file: Path) -> list[Pair]:
    """Read lines of two columns."""
    cells = [line.split("\t") for line in file.read_text().splitlines()]
    return [(english, other) for english, other in cells]


def sentences_and_verses(data: Path, language: str, split: str) -> list[Pair]:
    """Mix sentences of Tatoeba and verses of the Bible, in English and in another language."""

    def lines(name: str) -> list[str]:
        return lzma.decompress((data / "mt" / f"{name}.xz").read_bytes()).decode().split("\n")[:-1]

    sentences = iter([line.split("\t", 1) for line in lines(f"tatoeba/eng-{language}/{split}.tsv")])
    pairs: list[Pair] = []
    verses = (lines(f"bible/{name}.txt") for name in (ENGLISH, language, "split"))
    for english, other, part in zip(*verses, strict=True):
        if part == split and "<range>" not in (english, other):
            some = [*itertools.islice(sentences, SHORT), [english, other]]
            pairs += [(one, two) for one, two in some if one and two]
    random.Random(0).shuffle(pairs)
    return pairs


def train_translator(folder: Path, corpora: Mapping[str, str], *, steps: int, pieces: int) -> Path:
    """Train the translator, unless it is there."""
    directions: dict[str, str] = {}
    for language, corpus in corpora.items():
        directions |= {f"mt/{ENGLISH}/{language}": corpus, f"mt/{language}/{ENGLISH}": corpus}
    recipe = {
        "backbone": {"preset": "transformer-mini", "tokenizer": str(folder / "vocabulary")},
        "method": {"name": "hyper-adapters", "hidden_size": 64, "adapter_size": 32},
        "languages": [ENGLISH, *OTHERS],
        "tasks": {"mt": {}},
        "directions": [f"{ENGLISH}/*", f"*/{ENGLISH}"],
        "data": {"train": directions},
        "mixture": {"datasets_per_batch": 4},
        "optim": {"lr": 3e-3, "schedule": "inverse-sqrt", "warmup_steps": 200, "betas": [0.9, 0.98]},
        "train": {"steps": steps, "tokens_per_batch": 4096, "max_length": 128},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    if not (folder / "vocabulary").exists():
        run_polyloom("data", "vocab", path, "-o", folder / "vocabulary", "--size", pieces)
    run_polyloom("train", path, "-o", folder / "run")
    return folder / "run"


def translation_rows(held_out: Mapping[str, Sequence[Pair]], seed: int) -> Iterator[Row]:
    """Yield texts of all directions for ever."""
    draw = random.Random(seed)
    while True:
        language = draw.choice(OTHERS)
        pair = draw.choice(held_out[language])
        into_english = draw.random() < 0.5
        names = (language, ENGLISH) if into_english else (ENGLISH, language)
        yield "/".join(("mt", *names)), pair[into_english]


async def in_flight_and_batches(
    run: Path, held_out: Mapping[str, Sequence[Pair]], *, seconds: float, rounds: int
) -> dict[str, Any]:
    """Let two engines answer the same rows, in turns; then send rows at a rate that both can answer."""
    results: dict[str, Any] = {"in_flight": {"rows_per_second": []}, "batches": {"rows_per_second": []}}
    names = list(results)
    texts: dict[str, list[str]] = {}

    async def use(name: str, seed: int, rate: float | None = None) -> Any:
        engine = Engine(run, limits=Limits(timeout=600.0), beams=1)
        if name == "batches":
            engine.worker._is_greedy = lambda request: False  # type: ignore[method-assign]  # noqa: ARG005, SLF001
        async with engine:

            async def ask(row: Row) -> None:
                await engine.answer(*row)

            some = itertools.islice(translation_rows(held_out, 0), 64)
            answers = await asyncio.gather(*(engine.answer(*row) for row in some))
            texts[name] = [str(answer.prediction) for answer in answers]
            rows = translation_rows(held_out, seed)
            if rate is None:
                return await closed(ask, rows, seconds)
            return await open_loop(ask, rows, rate=rate, seconds=3 * seconds)

    for number in range(rounds):
        for name in names:
            results[name]["rows_per_second"].append(await use(name, number))
        assert texts["in_flight"] == texts["batches"], "translations differ"
    lengths = [len(text.split()) for text in texts["in_flight"]]
    rate = 0.7 * statistics.median(results["batches"]["rows_per_second"])
    for name in names:
        results[name]["open_loop"] = summary(await use(name, rounds, rate))
    ratios = zip(*(results[name]["rows_per_second"] for name in names), strict=True)
    return results | {
        "words": {"median": statistics.median(lengths), "longest": max(lengths)},
        "rate": rate, "in_flight_over_batches": statistics.median(a / b for a, b in ratios),
    }  # fmt: skip


# -- hours ------------------------------------------------------------------------------------------------------------


@command(app)
def soak(
    *,
    minutes: Annotated[float, typer.Option(help="Minutes of traffic.")] = 20.0,
    languages: Annotated[int, typer.Option(help="Number of languages, each with four tasks.")] = 50_000,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """What hours of traffic do to a server: its memory and its latency while 200,000 conditions are asked for (R16).

        python -m benchmarks.serving soak --json benchmarks/results/serving_soak.json

    The model is small, so that many rows pass. 50,000 languages and four tasks are asked for by Zipf's law, at half of
    what the server can answer, with room for few of them in the cache. First its queue is filled, because memory has to
    grow to that of the largest batches once. The first quarter of the time is warm-up. Of the rest, memory has a slope,
    and latency in the last third is compared with that in the first: of all windows, and of those in which other
    machines of the host took less than 2 % of the processors' time. Beside it stands how long a fixed piece of work
    took.
    """
    window = 0.5 if tiny else WINDOW
    minutes, languages = (0.1, 100) if tiny else (minutes, languages)
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), languages=languages, layers=2, width=64)
        with server(run, **{"threads": 1, "cache-mb": 16}) as (port, process):
            windows = asyncio.run(soak_windows(port, process, languages=languages, minutes=minutes, window=window))
    later = windows[len(windows) // 4 :]
    undisturbed = [measured for measured in later if not is_disturbed(measured, window)]
    results = {"all": drifts(later), "undisturbed": drifts(undisturbed)}
    report({"summary": results, "windows": windows}, file, summary=results)


async def soak_windows(
    port: int, process: int, *, languages: int, minutes: float, window: float
) -> list[dict[str, Any]]:
    """Send rows for some minutes; return memory and latency of every window."""
    http, rows = Http(port), rows_of(zipf(languages), 0)
    capacity = await closed(http.ask, rows, window)
    await open_loop(http.ask, rows, rate=3 * capacity, seconds=window)
    windows, start = [], time.monotonic()
    while time.monotonic() < start + 60 * minutes:
        stolen = stolen_seconds()
        answers = await open_loop(http.ask, rows, rate=0.5 * capacity, seconds=window)
        outcomes = Counter(answer["outcome"] for answer in answers)
        measured = {
            "hours": (time.monotonic() - start) / 3600, "megabytes": memory_of(process),
            "failed": outcomes.total() - outcomes["answered"], "refused": outcomes[OverloadedError.__name__],
        }  # fmt: skip
        machine = {"loop_ms": loop_milliseconds(), "stolen_seconds": stolen_seconds() - stolen}
        windows.append(measured | summary(answers) | machine)
    return windows


def stolen_seconds() -> float:
    """Return how long processors of this machine have waited for others of its host."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def loop_milliseconds() -> float:
    """Time the same piece of work: a machine that others use too is not always equally fast."""
    start = time.perf_counter()
    sum(number * number for number in range(500_000))
    return 1e3 * (time.perf_counter() - start)


def is_disturbed(measured: Mapping[str, Any], window: float = WINDOW) -> bool:
    """Return whether others took a part of the machine that matters, in a window of so many seconds."""
    return bool(measured["stolen_seconds"] > DISTURBED * window * (os.cpu_count() or 1))


def drifts(windows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the slope of memory and the drift of latency; of fewer than two windows only their number."""
    if len(windows) < 2:
        return {"windows": len(windows)}
    third = max(1, len(windows) // 3)
    slope = statistics.linear_regression([w["hours"] for w in windows], [w["megabytes"] for w in windows]).slope

    def drift(of: str) -> float:
        first, last = (statistics.median(float(w[of]) for w in some) for some in (windows[:third], windows[-third:]))
        return last / first

    return {
        "windows": len(windows), "rows": sum(w["count"] for w in windows), "failed": sum(w["failed"] for w in windows),
        "megabytes_per_hour": slope, "megabytes_grown": windows[-1]["megabytes"] - windows[0]["megabytes"],
        **{f"{what}_last_over_first": drift(f"{what}_ms") for what in ("p50", "p99", "loop")},
    }  # fmt: skip


if __name__ == "__main__":
    app()
