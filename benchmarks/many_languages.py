"""Two thousand languages, up to twenty million rows: writing, opening, the first batch, one at step 10⁹, memory.

    python benchmarks/many_languages.py --json benchmarks/results/many_languages.json

Rows are random tokens of random lengths; the sizes of the languages fall as in FineWeb2, from half of all rows to a few
hundred. They are written as `polyloom data prepare` writes them, without tokenization, which
`benchmarks/prepare_bitext.py` measures. A fresh process writes them, for 1, 5 and 20 million rows, and says what its
memory was at most; another one opens them and draws batches. CPU seconds of one thread, unless they are by the clock.
Needs 6 GB of disk.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from polyloom.data.blocks import Columns
from polyloom.data.dataset_writer import write_packed
from polyloom.data.encoded import open_dataset
from polyloom.data.mixture import Mixture, MixtureConfig
from polyloom.data.packing import ROWS_PER_PACK, Packed

COLUMNS: Columns = {"tokens": "ints", "length": "int"}
MEAN_TOKENS = 30
SMALLEST = 200
FAR = 10**9
STEPS = 100


def sizes(languages: int, rows: int) -> list[int]:
    """Divide rows among languages, in proportion to one over the rank to the power of 1.2."""
    shares = 1 / np.arange(1, languages + 1) ** 1.2
    return [max(SMALLEST, int(count)) for count in rows * shares / shares.sum()]


def packs(rows: int, seed: int) -> Iterator[Packed]:
    """Make up rows, as they are packed for writing: how many tokens, the length, the tokens."""
    lot = np.random.default_rng(seed)
    for start in range(0, rows, ROWS_PER_PACK):
        tokens = 1 + lot.gamma(3, (MEAN_TOKENS - 1) / 3, min(ROWS_PER_PACK, rows - start)).astype(np.int32)
        ends = np.cumsum(tokens + 2)
        words = lot.integers(0, 100_000, int(ends[-1]), dtype=np.int32)
        words[ends - tokens - 2] = tokens
        words[ends - tokens - 1] = tokens + 2
        yield Packed(words, tokens + 2, tokens + 2)


def memory(key: str) -> float:
    """Megabytes of this process's memory, by the name of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1000
    raise KeyError(key)


def write(folder: Path, languages: int, rows: int) -> dict[str, Any]:
    """Write all datasets in this process, which must be a fresh one."""
    counts, before, began = sizes(languages, rows), memory("VmHWM"), time.process_time()
    for number, count in enumerate(counts):
        write_packed(folder / f"l{number:04d}", packs(count, number), columns=COLUMNS, meta={})
    seconds = time.process_time() - began
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "rows": sum(counts), "largest": counts[0], "smallest": counts[-1], "bytes": stored,
        "seconds_per_million_rows": seconds / sum(counts) * 1e6, "memory_peak_mb": memory("VmHWM"),
        "memory_before_mb": before,
    }  # fmt: skip


def draw(folder: Path, languages: int) -> dict[str, Any]:
    """Open all datasets in this process, which must be a fresh one, and draw batches of 32,000 tokens in 32 draws."""
    before, began, clock = memory("RssAnon"), time.process_time(), time.perf_counter()
    datasets = {f"lm/l{number:04d}": open_dataset(folder / f"l{number:04d}") for number in range(languages)}
    opened = time.process_time()
    config = MixtureConfig(temperature=3.0, datasets_per_batch=32)
    mixture = Mixture(datasets, config, seed=0, tokens_per_batch=32_000)
    mixed = time.process_time()

    def batch(step: int) -> int:
        picks = mixture.batch(step)
        return sum(int(datasets[pick.dataset].rows([pick.index])[0]["length"]) for pick in picks)

    batch(0)
    first, clock = time.process_time(), time.perf_counter() - clock
    fresh = Mixture(datasets, config, seed=0, tokens_per_batch=32_000)
    made = time.process_time()
    mixture = fresh
    batch(FAR)
    resumed = time.process_time()
    tokens = sum(batch(step) for step in range(STEPS))
    drawn = time.process_time() - resumed
    return {
        "open_seconds": opened - began, "mixture_seconds": mixed - opened, "first_batch_seconds": first - mixed,
        "time_to_first_batch": first - began, "time_to_first_batch_by_the_clock": clock,
        "batch_at_a_billion_seconds": resumed - made,
        "tokens_per_second": tokens / drawn, "blocks": sum(dataset.num_blocks for dataset in datasets.values()),
        "memory_of_the_order_mb": memory("RssAnon") - before, "memory_before_mb": before,
    }  # fmt: skip


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--languages", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000, 20_000_000])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write or options.draw:
        (rows,) = options.rows
        folder, languages = options.write or options.draw, options.languages
        print(json.dumps(write(folder, languages, rows) if options.write else draw(folder, languages)))
        return
    found: dict[str, Any] = {"languages": options.languages, "runs": []}
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as name:
            run = {part: in_fresh_process(part, name, options.languages, rows) for part in ("write", "draw")}
        found["runs"].append(run)
        print(json.dumps(run, indent=1), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def in_fresh_process(part: str, folder: str, languages: int, rows: int) -> dict[str, Any]:
    """Write or draw in a process of its own, with one thread."""
    command = [sys.executable, __file__, f"--{part}", folder, "--languages", str(languages), "--rows", str(rows)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ).stdout  # noqa: S603
    found: dict[str, Any] = json.loads(out)
    return found


if __name__ == "__main__":
    main()
