"""What the checks of files add to the start of `polyloom predict`.

    python -m benchmarks.start --backbone DIR --json benchmarks/results/start.json

Two runs of a pretrained backbone are trained for two steps: Hyper-X, whose checkpoint is small, and `full`, whose
checkpoint has all parameters. Then each is loaded in fresh processes, in turn, to predict one sentence. In the process
every function that only checks something is timed, in processor time of its own thread. Their sum is divided by the
processor time of the process, imports included. The first start with an empty cache, which also tries the tokenizer, is
shown separately, by the clock.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from tests.tiny_run import write_backbone, write_corpora

from benchmarks.measure import Json, Rounds, Tiny, command, make_app, write_results
from polyloom.workflows.train import train

app = make_app()
# A program of its own: what this one has imported must not be part of the start.
START = """
import sys, time, importlib, json
from collections import Counter
spent = Counter()

def measure(name):
    place, _, function = name.rpartition(".")
    module = importlib.import_module(place)
    inner = getattr(module, function)
    def call(*args, **options):
        before = time.thread_time()
        try:
            return inner(*args, **options)
        finally:
            spent[name] += time.thread_time() - before
    setattr(module, function, call)

for name in json.loads(sys.argv[2]):
    measure("polyloom." + name)
from polyloom.workflows.run import load
load(sys.argv[1], allow=["/"]).predict("Die Katze schläft.", "pos/de")
print(json.dumps({"seconds": time.process_time(), "checks": spent}))
"""
# Functions that check, and compute nothing that a prediction needs. None of them calls another.
CHECKS = [
    "tensor_files.sha256_of", "tensor_files.require_regular", "io.sealed._first_line",
    "backbones.load.find_folder", "backbones.load.check_config", "backbones.load._without_weights",
    "backbones.load._require_size", "backbones.load._require_weights",
    "data.tokenization.tokenizer.find_folder", "data.tokenization.tokenizer.check_config",
    "data.tokenization.tokenizer.try_tokenizer",
    "backbones.identity._hash_of_buffers", "backbones.identity._settings",
    "loading.access_to", "loading.TrainedParts",
]  # fmt: skip
METHODS = ("hyperx", "full")
LANGUAGES = {"en": "aa", "de": "bb"}


@command(app, __doc__)
def main(
    backbone: Annotated[Path | None, typer.Option(help="Folder of a pretrained encoder.")] = None,
    *,
    rounds: Rounds = 8,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """Train both runs, start them in turn."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_corpora(folder)
        if tiny:
            backbone = folder / "backbone"
            write_backbone(backbone)
        elif backbone is None:
            raise typer.BadParameter("name the folder of a pretrained encoder, or try --tiny", param_hint="--backbone")
        os.environ["POLYLOOM_CACHE"] = str(folder / "cache")
        for method in METHODS:
            recipe = {
                "backbone": {"name": str(backbone)}, "method": {"name": method}, "languages": ["en", "de"],
                "tasks": {"pos": {}}, "train": {"steps": 2, "rows_per_batch": 8},
                "data": {"train": {f"pos/{x}": str(folder / f"{y}-train.conllu") for x, y in LANGUAGES.items()}},
            }  # fmt: skip
            (folder / f"{method}.yaml").write_text(json.dumps(recipe))
            train(folder / f"{method}.yaml", folder / method)

        first = {method: start(folder / method, folder / f"empty-{method}") for method in METHODS}
        starts = [{method: start(folder / method, folder / "cache") for method in METHODS} for _ in range(rounds)]
    results = {method: summarize(first[method], [turn[method] for turn in starts]) for method in METHODS}
    lines = []
    for method, result in results.items():
        lines.append(f"{method}: checks are {100 * result['share']:.2f} % of the start.")
        largest = sorted(result["shares"].items(), key=lambda item: -item[1])[:5]
        lines += [f"    {name}: {100 * share:.2f} %" for name, share in largest]
        lines.append(f"    with an empty cache {result['first']:.2f} s, afterwards {result['later']:.2f} s")
    print("\n".join(lines))
    write_results(results, file)


def start(run: Path, cache: Path) -> dict[str, Any]:
    """Load a run in a new process and predict a sentence; return its times."""
    before = time.monotonic()
    done = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-c", START, str(run), json.dumps(CHECKS)],
        check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"POLYLOOM_CACHE": str(cache)},
    )  # fmt: skip
    return {**json.loads(done.stdout), "clock": time.monotonic() - before}


def summarize(first: dict[str, Any], starts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the starts of a run."""
    return {
        "share": statistics.median(sum(one["checks"].values()) / one["seconds"] for one in starts),
        "shares": {
            name: statistics.median(one["checks"].get(name, 0) / one["seconds"] for one in starts)
            for name in sorted({name for one in starts for name in one["checks"]})
        },
        "first": first["clock"],
        "later": statistics.median(one["clock"] for one in starts),
        "starts": starts,
    }


if __name__ == "__main__":
    app()
