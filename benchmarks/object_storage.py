"""What training from object storage costs, against training from files.

    python -m benchmarks.object_storage --json benchmarks/results/object_storage.json

moto's S3 server, in a process of its own, holds the encoded text of eight languages. `polyloom train` learns it, from
files and through a proxy that adds 0 and 30 ms to every request, in fresh processes with empty caches of blocks, in
turn, round after round. The log of each run says how long its steps took; the proxy counts requests and bytes. The
first step waits for its batch whatever is read ahead, so it is reported apart. One thread, a quiet machine: proxy and
server need the other core.
"""

import json
import math
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.io.storage_server import Proxy, Request, call, environment, moto_server

from benchmarks.corpora import write_corpus
from benchmarks.measure import Json, Rounds, Tiny, command, make_app, report, run_polyloom
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines

app = make_app()
URL = "s3://corpora/text"
LATENCIES = (0, 30)  # milliseconds
MODEL = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 128,
}  # fmt: skip


def write_recipe(folder: Path, *, languages: int, lines: int, rows: int) -> Path:
    """Write made-up text, its vocabulary, and a recipe that learns it with eight draws of a batch, or one a language.

    Args:
        folder: Where to write.
        languages: Number of languages, an even one.
        lines: Lines of each.
        rows: Rows of a batch.
    """
    corpora = {}
    for number in range(0, languages, 2):
        (folder / str(number)).mkdir()
        write_corpus(folder / str(number), lines, seed=number)
        for i, side in enumerate(("aa", "bb")):
            language = chr(ord("a") + number + i) * 2
            corpora[language] = (folder / str(number) / f"text.{side}").rename(folder / f"{language}.txt")
    texts = {name: [text for _, text in read_lines(path)][:2000] for name, path in corpora.items()}
    train_vocabulary(texts, folder / "vocabulary", config=VocabularyConfig(size=2000, mask=True))
    recipe = {
        "backbone": {"config": MODEL, "tokenizer": str(folder / "vocabulary")},
        "method": {"name": "full"},
        "languages": list(corpora),
        "tasks": {"mlm": {}},
        "data": {"train": {f"mlm/{name}": str(path) for name, path in corpora.items()}},
        "mixture": {"datasets_per_batch": min(8, languages)},
        "train": {"steps": 40, "rows_per_batch": rows, "max_length": 128, "save_minutes": None},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def train(recipe: Path, run: Path, *settings: str, storage: str, cache: Path) -> dict[str, Any]:
    """Train, and return what the steps took: of the first one, and of all others."""
    run_polyloom("train", recipe, "-o", run, *settings, **environment(storage), POLYLOOM_CACHE=str(cache))
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    seconds = [event["seconds"] for event in events if event["event"] == "step"]
    sums = [sum(step.values()) for step in seconds]
    return {
        "first_step": sums[0], "first_data": seconds[0]["data"], "steps": sums[1:],
        "data": [step["data"] for step in seconds[1:]],
    }  # fmt: skip


def count_requests(requests: list[Request], steps: int) -> dict[str, float]:
    """Count requests for blocks, and their bytes, by step, and all other requests."""
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", r.headers["range"]) for r in requests if "/part-" in r.path]
    of_blocks = [int(match[2]) + 1 - int(match[1]) for match in ranges if match]
    return {
        "requests_per_step": len(of_blocks) / steps, "bytes_per_step": sum(of_blocks) / steps,
        "other_requests": len(requests) - len(of_blocks),
    }  # fmt: skip


def measure(folder: Path, recipe: Path, *, rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Train from files and from storage, in turn, and return what the runs of each variant took."""
    runs: dict[str, list[dict[str, Any]]] = {"files": [], **{f"storage {latency} ms": [] for latency in LATENCIES}}
    with moto_server(folder) as address:
        proxy = Proxy(address)
        call("PUT", f"{address}/corpora")
        settings = environment(proxy.url) | {"POLYLOOM_CACHE": str(folder / "cache")}
        run_polyloom("data", "prepare", recipe, "--to", URL, **settings)
        for number in range(rounds):
            run, length = folder / f"files-{number}", f"train.steps={steps}"
            runs["files"].append(train(recipe, run, length, storage=proxy.url, cache=folder / "cache"))
            for latency in LATENCIES:
                proxy.clear()
                proxy.before = lambda _, latency=latency: time.sleep(latency / 1000)
                run, cache = (folder / f"{kind}-{latency}-{number}" for kind in ("storage", "cache"))
                took = train(recipe, run, length, f"data.prepared={URL}", storage=proxy.url, cache=cache)
                runs[f"storage {latency} ms"].append(took | count_requests(proxy.requests, steps))
        proxy.close()
    return runs


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Summarize the runs of each variant: medians over runs, and the least time of every step over all runs.

    Runs of all variants take the same steps in the same order, so their sums of least times can be compared, and what
    a slow moment of the machine costs one run is not counted.
    """
    of_files = [statistics.mean(run["steps"]) for run in runs["files"]]
    summary = {}
    for variant, some in runs.items():
        means = [statistics.mean(run["steps"]) for run in some]
        summary[variant] = {
            "seconds_per_step": statistics.median(means),
            "against_files": statistics.median(mean / files for mean, files in zip(means, of_files, strict=True)),
            "least_against_files": least(some) / least(runs["files"]),
            "data_seconds_per_step": statistics.median(statistics.mean(run["data"]) for run in some),
            "first_data_seconds": statistics.median(run["first_data"] for run in some),
        } | {key: some[0][key] for key in ("requests_per_step", "bytes_per_step", "other_requests") if key in some[0]}
    return summary


def least(runs: list[dict[str, Any]]) -> float:
    """Return the sum over steps of the least time of a step."""
    return math.fsum(min(times) for times in zip(*(run["steps"] for run in runs), strict=True))


@command(app, __doc__)
def main(  # noqa: PLR0913 - options of a command
    *,
    languages: Annotated[int, typer.Option(help="Number of languages.")] = 8,
    lines: Annotated[int, typer.Option(help="Lines of each language.")] = 20_000,
    rows: Annotated[int, typer.Option(help="Rows of a batch.")] = 96,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 121,
    rounds: Rounds = 8,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """Train from files and from storage, in turn."""
    if tiny:
        languages, lines, rows, steps = 2, 2000, 8, 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, languages=languages, lines=lines, rows=rows)
        runs = measure(folder, recipe, rounds=rounds, steps=steps)
    summary = summarize(runs)
    report({"summary": summary, "runs": runs}, file, summary=summary)


if __name__ == "__main__":
    app()
