"""Two thousand languages, up to twenty million rows: writing, opening, the first batch, one at step 10⁹, memory.

    python -m benchmarks.many_languages --json benchmarks/results/many_languages.json

Rows are random tokens of random lengths; the sizes of the languages fall as in FineWeb2, from half of all rows to a few
hundred. They are written as `polyloom data prepare` writes them, without tokenization, which
`benchmarks.prepare` measures. A fresh process writes them, for 1, 5 and 20 million rows, and reports the peak
of its memory; another one opens them and draws batches. CPU seconds of one thread, unless they are by the clock. Needs
6 GB of disk.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.corpora import random_rows
from benchmarks.measure import Json, Tiny, command, in_fresh_process, make_app, memory, report
from polyloom.data.blocks import Columns
from polyloom.data.dataset_writer import write_packed
from polyloom.data.encoded import open_dataset
from polyloom.data.mixture import Mixture, MixtureConfig

app = make_app()
COLUMNS: Columns = {"tokens": "ints", "length": "int"}
SMALLEST = 200
FAR = 10**9
STEPS = 100


@command(app, __doc__)
def main(
    languages: Annotated[int, typer.Option(help="Number of languages.")] = 2000,
    rows: Annotated[list[int] | None, typer.Option(help="Default: 1, 5 and 20 million.")] = None,
    *,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """Measure every number of rows, in two processes each."""
    languages, rows = (40, [10_000]) if tiny else (languages, rows or [1_000_000, 5_000_000, 20_000_000])
    runs = []
    for count in rows:
        with tempfile.TemporaryDirectory() as name:
            written = in_fresh_process(write, Path(name), languages, count)
            runs.append({"write": written, "draw": in_fresh_process(draw, Path(name), languages)})
    report({"languages": languages, "runs": runs}, file)


def write(folder: Path, languages: int, rows: int) -> dict[str, Any]:
    """Write all datasets in this process, which must be a fresh one."""
    shares = 1 / np.arange(1, languages + 1) ** 1.2  # of a language, by its rank
    counts = [max(SMALLEST, int(count)) for count in rows * shares / shares.sum()]
    before, started = memory("VmHWM"), time.process_time()
    for number, count in enumerate(counts):
        packed = random_rows(count, 1, seed=number, tokens=(0, 100_000))
        write_packed(folder / f"l{number:04d}", packed, columns=COLUMNS, meta={})
    seconds = time.process_time() - started
    stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "rows": sum(counts), "largest": counts[0], "smallest": counts[-1], "bytes": stored,
        "seconds_per_million_rows": seconds / sum(counts) * 1e6, "memory_peak_mb": memory("VmHWM"),
        "memory_before_mb": before,
    }  # fmt: skip


def draw(folder: Path, languages: int) -> dict[str, Any]:
    """Open all datasets in this process, which must be a fresh one, and draw batches of 32,000 tokens in 32 draws."""
    before, started, clock = memory("RssAnon"), time.process_time(), time.perf_counter()
    datasets = {f"lm/l{number:04d}": open_dataset(folder / f"l{number:04d}") for number in range(languages)}
    opened = time.process_time()
    config = MixtureConfig(temperature=3.0, datasets_per_batch=32)

    def make_mixture() -> Mixture:
        return Mixture(datasets, config, seed=0, tokens_per_batch=32_000)

    def tokens_of(mixture: Mixture, step: int) -> int:
        picks = mixture.batch(step)
        return sum(int(datasets[pick.dataset].rows([pick.index])[0]["length"]) for pick in picks)

    mixture = make_mixture()
    mixed = time.process_time()
    tokens_of(mixture, 0)
    first, clock = time.process_time(), time.perf_counter() - clock

    mixture = make_mixture()  # a resumed run has nothing in memory either
    resuming = time.process_time()
    tokens_of(mixture, FAR)
    resumed = time.process_time()
    tokens = sum(tokens_of(mixture, step) for step in range(STEPS))
    drawn = time.process_time() - resumed
    return {
        "open_seconds": opened - started, "mixture_seconds": mixed - opened, "first_batch_seconds": first - mixed,
        "time_to_first_batch": first - started, "time_to_first_batch_by_the_clock": clock,
        "batch_at_a_billion_seconds": resumed - resuming,
        "tokens_per_second": tokens / drawn, "blocks": sum(dataset.num_blocks for dataset in datasets.values()),
        "memory_of_the_order_mb": memory("RssAnon") - before, "memory_before_mb": before,
    }  # fmt: skip


if __name__ == "__main__":
    app()
