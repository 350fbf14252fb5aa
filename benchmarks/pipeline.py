"""Datasets: how fast they are prepared, and how fast batches are made of them."""

import itertools
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import typer

from benchmarks.corpora import random_rows, write_corpus
from benchmarks.measure import Json, Rounds, Tiny, command, in_fresh_process, make_app, memory, report, write_results
from polyloom.backbones import backbone_from_config
from polyloom.conditions import Condition
from polyloom.config.recipe import PRESETS
from polyloom.data.blocks import Columns
from polyloom.data.catalog import resolve
from polyloom.data.dataset_writer import write_packed
from polyloom.data.mixture import MixtureConfig
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines
from polyloom.methods.full import DenseConfig, FullConfig
from polyloom.model import Model
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.encoder import BATCH
from polyloom.training.loop import ReadAhead, StepBatches, TrainLoop
from polyloom.training.plan import StagePlan, TrainDataset
from polyloom.training.prepare import LINES_PER_RUN, prepare_dataset

app = make_app()
LANGUAGES = tuple("abcdefgh"[i] * 2 for i in range(8))
THREADS = (0, 1, 2, 4)
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BACKBONES: Mapping[str, Mapping[str, Any]] = {
    "lm": {"model_type": "llama", "num_key_value_heads": 1, "max_position_embeddings": 1024, **TINY},
    "mlm": {"model_type": "bert", "max_position_embeddings": 512, **TINY},
    "mt": PRESETS["transformer-mini"],
}
TRAIN: Mapping[str, Mapping[str, Any]] = {
    "lm": {"rows_per_batch": 32, "max_length": 1024, "pack_sequences": True},
    "mlm": {"tokens_per_batch": 32_768, "max_length": 512},
    "mlm-512": {"rows_per_batch": 64, "max_length": 512, "pack_sequences": True},
    "mt": {"tokens_per_batch": 32_768, "max_length": 256},
}


# -- batches ----------------------------------------------------------------------------------------------------------


@command(app)
def batches(
    kinds: Annotated[list[str] | None, typer.Option("--kind", help="lm, mlm, mlm-512 or mt; default: all.")] = None,
    *,
    rows: Annotated[int, typer.Option(help="Rows of each of eight datasets.")] = 300_000,
    steps: Annotated[int, typer.Option(help="Steps of a round.")] = 20,
    rounds: Rounds = 40,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """How many tokens per second the input pipeline makes into batches, without a model that uses them.

        python -m benchmarks.pipeline batches --json benchmarks/results/pipeline_batches.json

    A step's examples are drawn, read, cut or packed, masked, and laid out as tensors by `TrainLoop.batches`, in this
    thread and in 1, 2 and 4 threads of `ReadAhead`, in turn, round after round; medians over rounds, by the clock.

        lm        packed rows of 1,024 tokens, 32 of them, from lines of about 30 tokens
        mlm       32,768 tokens of lines of about 30, with masks
        mlm-512   64 packed rows of 512 tokens, with masks
        mt        32,768 tokens of the longer side of pairs of about 30 tokens
    """
    rows, steps = (3000, 1) if tiny else (rows, steps)
    results: dict[str, Any] = {"rows": rows, "steps": steps, "rounds": rounds, "rates": {}}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder))
        for kind in kinds or TRAIN:
            loop = make_loop(Path(folder), kind, rows, tokenizer)
            rates: dict[int, list[float]] = {threads: [] for threads in THREADS}
            for turn, threads in enumerate(THREADS * rounds):
                rates[threads].append(rate(loop, turn * steps, steps, threads))  # no step is made twice
            results["rates"][kind] = rates
            medians = {threads: round(statistics.median(values)) for threads, values in rates.items()}
            print(f"{kind}: tokens per second by threads: {medians}", flush=True)
    write_results(results, file)


def write_tokenizer(folder: Path) -> Tokenizer:
    """Learn pieces of made-up words, with the tokens that every task needs."""
    write_corpus(folder, 5000)
    texts = {x: [text for _, text in read_lines(folder / f"text.{x}")] for x in ("aa", "bb")}
    config = VocabularyConfig(size=4000, mask=True)
    train_vocabulary(texts, folder / "vocabulary", config=config, languages=LANGUAGES)
    return load_tokenizer(str(folder / "vocabulary"))


def make_loop(folder: Path, kind: str, rows: int, tokenizer: Tokenizer) -> TrainLoop:
    """Return a loop whose batches have eight draws of eight languages."""
    task = kind.partition("-")[0]
    columns: Columns = dict.fromkeys(("source", "target") if task == "mt" else ("tokens",), "ints")
    datasets = []
    for number, language in enumerate(LANGUAGES):
        condition = Condition(task, language, LANGUAGES[number - 1] if task == "mt" else None)
        dataset = write_packed(
            folder / f"{kind}-{language}", random_rows(rows, len(columns), seed=number, tokens=(10, 3900)),
            columns={**columns, "length": "int"}, meta={"labels": []}, run=1 if task == "mt" else LINES_PER_RUN,
        )  # fmt: skip
        datasets.append(TrainDataset(str(condition), condition, dataset, np.zeros(0, np.int64)))
    special = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.eos_id}
    special |= {"decoder_start_token_id": tokenizer.eos_id} if task == "mt" else {}
    backbone = backbone_from_config({**BACKBONES[task], **special, "vocab_size": tokenizer.vocab_size})
    method = DenseConfig() if task == "mt" else FullConfig()
    directions = {"directions": ["*/*"]} if task == "mt" else {}
    model = Model(backbone, method, languages=LANGUAGES, tasks={task: None}, **directions)
    (stage,) = model.method.stages()
    train = TrainConfig(steps=10**6, **TRAIN[kind])
    plan = StagePlan(stage, OptimConfig(), train, MixtureConfig(datasets_per_batch=8), tuple(datasets))
    return TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())


def tokens_of(batches: StepBatches) -> int:
    """Return the tokens of a step without padding, of the encoder or of the decoder if there is no encoder."""
    return sum(batch.num_tokens for batch in batches.micro_batches)


def rate(loop: TrainLoop, first: int, steps: int, threads: int) -> float:
    """Return the tokens per second of some steps."""
    started = time.perf_counter()
    if threads == 0:
        tokens = sum(tokens_of(loop.batches(step)) for step in range(first, first + steps))
    else:
        with ReadAhead(loop.batches, ahead=threads, stop=first + steps, threads=threads) as batches:
            tokens = sum(tokens_of(batches.get(step)) for step in range(first, first + steps))
    return tokens / (time.perf_counter() - started)


# -- preparation ------------------------------------------------------------------------------------------------------

CONDITIONS = {"pairs": Condition("mt", "aa", "bb"), "lines": Condition("lm", "aa")}
CORPORA = {"pairs": "text.{aa,bb}", "lines": "text.aa"}


@command(app)
def prepare(
    pairs: Annotated[list[int] | None, typer.Option(help="Default: a million, and five.")] = None,
    processes: Annotated[list[int] | None, typer.Option(help="Encoding processes. Default: 1, and 2.")] = None,
    *,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """Preparing five million pairs of bitext, or lines of raw text: memory, throughput, bytes on disk.

        python -m benchmarks.pipeline prepare --json benchmarks/results/pipeline_prepare.json

    Pairs are made up from a seed and written as two aligned files in a temporary folder (about 600 MB). Of a hundred,
    five are repeated, two have sides of very different length. A fresh process encodes, filters and deduplicates them
    as `polyloom train` does, and then the lines of one file as raw text, once per size and number of encoding
    processes, each with one thread. The results are the peak of its own memory (without pages of the dataset that it
    reads at the end: the kernel may take them back) and of its largest child, CPU seconds with those of its children,
    and the dataset's bytes. The tokenizer alone is measured beside it, on the first of these lines.
    """
    results = []
    for number in [2000] if tiny else pairs or [1_000_000, 5_000_000]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_corpus(folder, number)
            write_vocabulary(folder, size=500 if tiny else 8000)
            results.append(in_fresh_process(tokenize, folder))
            for kind, count in itertools.product(CONDITIONS, processes or [1, 2]):
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
