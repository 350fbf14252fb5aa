"""Preparing five million pairs of bitext, or lines of raw text: memory, throughput, bytes on disk.

    python benchmarks/prepare_bitext.py --json benchmarks/results/prepare_bitext.json

Pairs are made up from a seed and written as two aligned files in a temporary folder (about 600 MB). Of a hundred, five
are repeated, two have sides of very different length. A fresh process encodes, filters and deduplicates them as
`polyloom train` does, and then the lines of one file as raw text, once per size and number of encoding processes, each
with one thread. What it took is the peak of its own memory (pages of the dataset that it looks through at the end are
not its own: the kernel may take them back) and of its largest child, CPU seconds with those of its children, and the
dataset's bytes. The tokenizer alone, on the first of these lines, is measured beside it.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines
from polyloom.training.encoder import BATCH
from polyloom.training.prepare import prepare_dataset

CONDITIONS = {"pairs": Condition("mt", "aa", "bb"), "lines": Condition("lm", "aa")}
CORPORA = {"pairs": "text.{aa,bb}", "lines": "text.aa"}
NUM_WORDS, MEAN_WORDS, CHUNK = 20_000, 10, 10_000
REPEATED, UNEVEN = 0.05, 0.02


def write_corpus(folder: Path, pairs: int, *, seed: int = 0, mean_words: int = MEAN_WORDS) -> None:
    """Write made-up sentences and their translations, word by word: ``text.aa`` and ``text.bb``."""
    lot, draw = np.random.default_rng(seed), random.Random(seed)  # noqa: S311 - nothing is secret here
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = {
        language: np.array(["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(NUM_WORDS)], object)
        for language in ("aa", "bb")
    }
    # Few words are frequent: the r-th comes with a probability of about 1 / r.
    frequencies = np.cumsum(1 / np.arange(5, NUM_WORDS + 5))
    with (folder / "text.aa").open("w") as source, (folder / "text.bb").open("w") as target:
        for start in range(0, pairs, CHUNK):
            size = min(CHUNK, pairs - start)
            lengths = 1 + lot.gamma(3, (mean_words - 1) / 3, size).astype(int)
            ends = np.cumsum(lengths)
            ranks = np.searchsorted(frequencies, lot.random(int(ends[-1])) * frequencies[-1])
            sides = [np.split(words[language][ranks], ends[:-1]) for language in ("aa", "bb")]
            lines = [[" ".join(one), " ".join(other)] for one, other in zip(*sides, strict=True)]
            for i in np.flatnonzero(lot.random(size) < UNEVEN).tolist():
                lines[i][1] = " ".join([lines[i][1]] * 4)
            for i in np.flatnonzero(lot.random(size) < REPEATED).tolist():
                lines[i] = lines[i // 2]
            source.writelines(f"{one}\n" for one, _ in lines)
            target.writelines(f"{other}\n" for _, other in lines)


def write_vocabulary(folder: Path, *, size: int = 8000, lines: int = 20_000) -> None:
    """Learn pieces from the first lines."""
    texts = {x: [text for _, text in islice(read_lines(folder / f"text.{x}"), lines)] for x in ("aa", "bb")}
    train_vocabulary(texts, folder / "vocabulary", config=VocabularyConfig(size=size))


def prepare(folder: Path, kind: str = "pairs", processes: int = 1) -> dict[str, Any]:
    """Prepare the corpus of a folder in this process, which must be a fresh one, and say what it took."""
    tokenizer = load_tokenizer(str(folder / "vocabulary"))
    corpus = resolve(f"{folder}/{CORPORA[kind]}" + ("#txt" if kind == "lines" else ""))
    tokenizer.text(["warm up"])
    before, cpu, wall = memory("RssAnon"), cpu_seconds(), time.perf_counter()
    with Watch() as watch:
        dataset = prepare_dataset(
            CONDITIONS[kind], [corpus], tokenizer=tokenizer, folder=folder / "datasets", processes=processes
        )
    took = {"cpu_seconds": cpu_seconds() - cpu, "seconds": time.perf_counter() - wall}
    size = sum(file.stat().st_size for file in Path(dataset.path).iterdir())
    rows = len(dataset) + sum(dataset.meta["dropped"].values())
    mean_length = float(dataset.lengths(0, dataset.num_blocks).mean())
    shutil.rmtree(dataset.path)
    return took | {
        "kind": kind,
        "processes": processes,
        "rows": rows,
        "kept": len(dataset),
        "dropped": dataset.meta["dropped"],
        "memory_before_mb": before / 1e6,
        "memory_peak_mb": watch.peak / 1e6,
        "with_mapped_files_mb": memory("VmHWM") / 1e6,
        "largest_child_mb": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
        "rows_per_second": rows / took["seconds"],
        "rows_per_cpu_second": rows / took["cpu_seconds"],
        "bytes_per_row": size / len(dataset),
        "mean_length": mean_length,
    }


def tokenize(folder: Path, lines: int = 50_000) -> dict[str, Any]:
    """Tokenize the first pairs and do nothing else, in this process, and say how many it does."""
    tokenizer = load_tokenizer(str(folder / "vocabulary"))
    sides = [[text for _, text in islice(read_lines(folder / f"text.{x}"), lines)] for x in ("aa", "bb")]
    lines, began = len(sides[0]), time.process_time()
    for start in range(0, lines, BATCH):
        for side in sides:
            tokenizer.text(side[start : start + BATCH])
    return {"kind": "tokenizer alone", "rows": lines, "rows_per_cpu_second": lines / (time.process_time() - began)}


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Watch(threading.Thread):
    """Looks at the memory of this process a hundred times a second; the kernel keeps no peak of what is its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self._over.wait(0.01):
            self.peak = max(self.peak, memory("RssAnon"))

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()


def memory(kind: str) -> int:
    """What the kernel says of this process's memory, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{kind}:")[1].split()[0])


def in_fresh_process(folder: Path, kind: str = "pairs", processes: int = 1) -> dict[str, Any]:
    """Prepare the corpus of a folder in a process of its own, with one thread for each that encodes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(Path(__file__).resolve()), "--prepare", str(folder), kind, str(processes)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prepare", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare:
        folder, kind, processes = arguments.prepare
        found = tokenize(Path(folder)) if kind == "tokenizer" else prepare(Path(folder), kind, int(processes))
        print(json.dumps(found))
        return
    results = []
    for pairs in arguments.pairs:
        with tempfile.TemporaryDirectory() as name:
            write_corpus(Path(name), pairs)
            write_vocabulary(Path(name))
            for kind, processes in (("tokenizer", 1), *product(CONDITIONS, arguments.processes)):
                results.append(in_fresh_process(Path(name), kind, processes))
                print(json.dumps(results[-1], indent=2), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
