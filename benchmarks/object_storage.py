"""What training from object storage costs, against training from files.

    python -m benchmarks.object_storage --json benchmarks/results/object_storage.json

moto's S3 server, in a process of its own, holds the encoded text of eight languages. `polyloom train` learns it, from
files and through a proxy that adds 0 and 30 ms to every request, in fresh processes with empty caches of blocks, in
turn, round after round. The log of each run says how long its steps took; the proxy counts requests and bytes. The
first step waits for its batch whatever is read ahead, so it is reported apart. One thread, a quiet machine: proxy and
server need the other core.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.prepare_bitext import write_corpus
from tests.io.storage_server import Proxy, Request, call, environment, moto_server

from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines

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


def polyloom(*arguments: object, storage: str, cache: Path) -> None:
    """Run a command in a fresh process with one thread."""
    environ = os.environ | environment(storage) | {"OMP_NUM_THREADS": "1", "POLYLOOM_CACHE": str(cache)}
    command = [sys.executable, "-m", "polyloom", *map(str, arguments)]
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise RuntimeError(done.stderr)


def train(recipe: Path, run: Path, *settings: str, storage: str, cache: Path) -> dict[str, Any]:
    """Train, and return what the steps took: of the first one, and of all others."""
    polyloom("train", recipe, "-o", run, *settings, storage=storage, cache=cache)
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    seconds = [event["seconds"] for event in events if event["event"] == "step"]
    sums = [sum(step.values()) for step in seconds]
    return {
        "first_step": sums[0], "first_data": seconds[0]["data"], "steps": sums[1:],
        "data": [step["data"] for step in seconds[1:]],
    }  # fmt: skip


def counted(requests: list[Request], steps: int) -> dict[str, float]:
    """Count requests for blocks, and their bytes, by step, and all other requests."""
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", r.headers["range"]) for r in requests if "/part-" in r.path]
    of_blocks = [int(found[2]) + 1 - int(found[1]) for found in ranges if found]
    return {
        "requests_per_step": len(of_blocks) / steps, "bytes_per_step": sum(of_blocks) / steps,
        "other_requests": len(requests) - len(of_blocks),
    }  # fmt: skip


def measure(folder: Path, recipe: Path, *, rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Train from files and from storage, in turn, and return what the runs of each variant took."""
    found: dict[str, list[dict[str, Any]]] = {"files": [], **{f"storage {latency} ms": [] for latency in LATENCIES}}
    with moto_server(folder) as address:
        proxy = Proxy(address)
        call("PUT", f"{address}/corpora")
        polyloom("data", "prepare", recipe, "--to", URL, storage=proxy.url, cache=folder / "cache")
        for number in range(rounds):
            run, length = folder / f"files-{number}", f"train.steps={steps}"
            found["files"].append(train(recipe, run, length, storage=proxy.url, cache=folder / "cache"))
            for latency in LATENCIES:
                proxy.clear()
                proxy.before = lambda _, latency=latency: time.sleep(latency / 1000)
                run, cache = (folder / f"{kind}-{latency}-{number}" for kind in ("storage", "cache"))
                took = train(recipe, run, length, f"data.prepared={URL}", storage=proxy.url, cache=cache)
                found[f"storage {latency} ms"].append(took | counted(proxy.requests, steps))
        proxy.close()
    return found


def summarize(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Summarize the runs of each variant: medians over runs, and the least time of every step over all runs.

    Runs of all variants take the same steps in the same order, so their sums of least times can be compared, and what
    a slow moment of the machine costs one run is not counted.
    """
    of_files = [statistics.mean(run["steps"]) for run in found["files"]]
    summary = {}
    for variant, runs in found.items():
        means = [statistics.mean(run["steps"]) for run in runs]
        summary[variant] = {
            "seconds_per_step": statistics.median(means),
            "against_files": statistics.median(mean / files for mean, files in zip(means, of_files, strict=True)),
            "least_against_files": _least(runs) / _least(found["files"]),
            "data_seconds_per_step": statistics.median(statistics.mean(run["data"]) for run in runs),
            "first_data_seconds": statistics.median(run["first_data"] for run in runs),
        } | {key: runs[0][key] for key in ("requests_per_step", "bytes_per_step", "other_requests") if key in runs[0]}
    return summary


def _least(runs: list[dict[str, Any]]) -> float:
    return math.fsum(map(min, zip(*(run["steps"] for run in runs), strict=True)))


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", type=int, default=8)
    parser.add_argument("--lines", type=int, default=20_000, help="of each language")
    parser.add_argument("--rows", type=int, default=96, help="of a batch")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=121, help="of each run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, languages=options.languages, lines=options.lines, rows=options.rows)
        runs = measure(folder, recipe, rounds=options.rounds, steps=options.steps)
    summary = summarize(runs)
    print(json.dumps(summary, indent=1))
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
