"""What the checks of files add to the start of `polyloom predict`.

    python benchmarks/checks.py --backbone ../backbones/me5-6l --json benchmarks/results/checks.json

Two runs of a pretrained backbone are trained for two steps: Hyper-X, whose checkpoint is small, and `full`, whose
checkpoint has all parameters. Then each is loaded in fresh processes, in turn, to predict one sentence. In the process
every function that only checks something is timed, in processor time of its own thread. Their sum is divided by the
processor time of the process, imports included. The first start with an empty cache, which also tries the tokenizer, is
shown separately, by the clock.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.tiny_run import write_corpora

CHILD = """
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
    "checkpoint.sha256_of", "checkpoint.require_regular", "io.sealed._first_line",
    "backbones.load.find_folder", "backbones.load.check_config", "backbones.load._without_weights",
    "backbones.load._require_size", "backbones.load._require_weights",
    "data.tokenization.tokenizer.find_folder", "data.tokenization.tokenizer.check_config",
    "data.tokenization.tokenizer.try_tokenizer",
    "backbones.identity._hash_of_buffers", "backbones.identity._settings",
    "loading.access_to", "workflows.run.TrainedParts",
]  # fmt: skip
METHODS = ("hyperx", "full")


def main() -> None:
    """Train both runs, start them in turn, print and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", required=True, help="directory of a pretrained backbone")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        report = measure(Path(directory), options.backbone, options.rounds)
    for method, found in report.items():
        print(f"{method}: checks are {100 * found['share']:.2f} % of the start.")
        for name, share in sorted(found["shares"].items(), key=lambda item: -item[1])[:5]:
            print(f"    {name}: {100 * share:.2f} %")
        print(f"    with an empty cache {found['first']:.2f} s, afterwards {found['later']:.2f} s")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(folder: Path, backbone: str, rounds: int) -> dict[str, Any]:
    """Return what was measured, by method."""
    os.environ["POLYLOOM_CACHE"] = str(folder / "cache")
    write_corpora(folder)
    for method in METHODS:
        corpora = {"pos/en": str(folder / "aa-train.conllu"), "pos/de": str(folder / "bb-train.conllu")}
        recipe = {
            "backbone": {"name": backbone}, "method": {"name": method}, "languages": ["en", "de"],
            "tasks": {"pos": {}}, "data": {"train": corpora}, "train": {"steps": 2, "rows_per_batch": 8},
        }  # fmt: skip
        (folder / f"{method}.yaml").write_text(json.dumps(recipe))
        train = [sys.executable, "-m", "polyloom", "train", str(folder / f"{method}.yaml"), "-o", str(folder / method)]
        subprocess.run(train, check=True)  # noqa: S603 - our own command
    first = {method: start(folder / method, folder / f"empty-{method}") for method in METHODS}
    starts = [{method: start(folder / method, folder / "cache") for method in METHODS} for _ in range(rounds)]
    report = {}
    for method in METHODS:
        shares = {
            name: statistics.median(s[method]["checks"].get(name, 0) / s[method]["seconds"] for s in starts)
            for name in sorted({name for s in starts for name in s[method]["checks"]})
        }
        report[method] = {
            "share": statistics.median(sum(s[method]["checks"].values()) / s[method]["seconds"] for s in starts),
            "shares": shares,
            "first": first[method]["clock"],
            "later": statistics.median(s[method]["clock"] for s in starts),
            "starts": [s[method] for s in starts],
        }
    return report


def start(run: Path, cache: Path) -> dict[str, Any]:
    """Load a run in a new process and predict a sentence; return its times."""
    before = time.monotonic()
    done = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-c", CHILD, str(run), json.dumps(CHECKS)],
        check=True, capture_output=True, text=True, env=os.environ | {"POLYLOOM_CACHE": str(cache)},
    )  # fmt: skip
    return {**json.loads(done.stdout), "clock": time.monotonic() - before}


if __name__ == "__main__":
    main()
