"""Preparing five million pairs of bitext, or lines of raw text: memory, throughput, bytes on disk.

    python -m benchmarks.prepare --json benchmarks/results/prepare.json

Pairs are made up from a seed and written as two aligned files in a temporary folder (about 600 MB). Of a hundred,
five are repeated, two have sides of very different length. A fresh process encodes, filters and deduplicates them
as `polyloom train` does, and then the lines of one file as raw text, once per size and number of encoding
processes, each with one thread. The results are the peak of its own memory (without pages of the dataset that it
reads at the end: the kernel may take them back) and of its largest child, CPU seconds with those of its children,
and the dataset's bytes. The tokenizer alone is measured beside it, on the first of these lines.
"""

# The processes that encode import this module again, so it imports no model: that would be a part of their memory.
import itertools
import resource
import shutil
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from benchmarks.corpora import write_corpus
from benchmarks.measure import Json, Tiny, command, in_fresh_process, make_app, memory, report
from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines
from polyloom.training.encoder import BATCH
from polyloom.training.prepare import prepare_dataset

app = make_app()
CONDITIONS = {"pairs": Condition("mt", "aa", "bb"), "lines": Condition("lm", "aa")}
CORPORA = {"pairs": "text.{aa,bb}", "lines": "text.aa"}


@command(app, __doc__)
def main(
    pairs: Annotated[list[int] | None, typer.Option(help="Default: a million, and five.")] = None,
    processes: Annotated[list[int] | None, typer.Option(help="Encoding processes. Default: 1, and 2.")] = None,
    *,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """Prepare pairs and lines of every size, in processes of their own."""
    pairs, processes = ([2000], [1]) if tiny else (pairs or [1_000_000, 5_000_000], processes or [1, 2])
    results = []
    for number in pairs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_corpus(folder, number)
            write_vocabulary(folder, size=500 if tiny else 8000)
            results.append(in_fresh_process(tokenize, folder))
            for kind, count in itertools.product(CONDITIONS, processes):
                results.append(in_fresh_process(prepare_corpus, folder, kind, count))
    report({"results": results}, file)


def write_vocabulary(folder: Path, *, size: int = 8000, lines: int = 20_000) -> None:
    """Learn pieces from the first lines."""
    texts = {x: [text for _, text in islice(read_lines(folder / f"text.{x}"), lines)] for x in ("aa", "bb")}
    train_vocabulary(texts, folder / "vocabulary", config=VocabularyConfig(size=size))


def prepare_corpus(folder: Path, kind: str = "pairs", processes: int = 1) -> dict[str, Any]:
    """Prepare the corpus of a folder in this process, which must be a fresh one; return what it took."""
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
        "memory_before_mb": before,
        "memory_peak_mb": watch.peak,
        "with_mapped_files_mb": memory("VmHWM"),
        "largest_child_mb": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
        "rows_per_second": rows / took["seconds"],
        "rows_per_cpu_second": rows / took["cpu_seconds"],
        "bytes_per_row": size / len(dataset),
        "mean_length": mean_length,
    }


def tokenize(folder: Path, lines: int = 50_000) -> dict[str, Any]:
    """Tokenize the first pairs and do nothing else, in this process; return how fast."""
    tokenizer = load_tokenizer(str(folder / "vocabulary"))
    sides = [[text for _, text in islice(read_lines(folder / f"text.{x}"), lines)] for x in ("aa", "bb")]
    lines, started = len(sides[0]), time.process_time()
    for start in range(0, lines, BATCH):
        for side in sides:
            tokenizer.text(side[start : start + BATCH])
    return {"kind": "tokenizer alone", "rows": lines, "rows_per_cpu_second": lines / (time.process_time() - started)}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Watch(threading.Thread):
    """Looks at the memory of this process a hundred times a second: the kernel keeps no peak without mapped files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        """Look until it is over."""
        while not self._over.wait(0.01):
            self.peak = max(self.peak, memory("RssAnon"))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()


if __name__ == "__main__":
    app()
