"""How many tokens per second the input pipeline makes into batches, without a model that uses them.

    python -m benchmarks.input_pipeline --json benchmarks/results/input_pipeline.json

A step's examples are drawn, read, cut or packed, masked, and laid out as tensors by `TrainLoop.batches`, in this
thread and in 1, 2 and 4 threads of `ReadAhead`, in turn, round after round; medians over rounds, by the clock.

    lm        packed rows of 1,024 tokens, 32 of them, from lines of about 30 tokens
    mlm       32,768 tokens of lines of about 30, with masks
    mlm-512   64 packed rows of 512 tokens, with masks
    mt        32,768 tokens of the longer side of pairs of about 30 tokens
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.prepare_bitext import write_corpus

from polyloom.backbones import backbone_from_config
from polyloom.conditions import Condition
from polyloom.config.recipe import PRESETS
from polyloom.data.blocks import Columns
from polyloom.data.dataset_writer import write_packed
from polyloom.data.mixture import MixtureConfig
from polyloom.data.packing import ROWS_PER_PACK, Packed
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.io.files import read_lines
from polyloom.methods.full import DenseConfig, FullConfig
from polyloom.model import Model
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import ReadAhead, StepBatches, TrainLoop
from polyloom.training.plan import StagePlan, TrainDataset
from polyloom.training.prepare import LINES_PER_RUN

LANGUAGES = tuple("abcdefgh"[i] * 2 for i in range(8))
MEAN_TOKENS = 30
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


def write_tokenizer(folder: Path) -> Tokenizer:
    """Learn pieces of made-up words, with the tokens that every task needs."""
    write_corpus(folder, 5000)
    texts = {x: [text for _, text in read_lines(folder / f"text.{x}")] for x in ("aa", "bb")}
    config = VocabularyConfig(size=4000, mask=True)
    train_vocabulary(texts, folder / "vocabulary", config=config, languages=LANGUAGES)
    return load_tokenizer(str(folder / "vocabulary"))


def packs(rows: int, lists: int, seed: int) -> Iterator[Packed]:
    """Make up rows of one or two lists, as they are packed for writing."""
    lot = np.random.default_rng(seed)
    for start in range(0, rows, ROWS_PER_PACK):
        count = min(ROWS_PER_PACK, rows - start)
        tokens = 1 + lot.gamma(3, (MEAN_TOKENS - 1) / 3, (count, 1)).astype(np.int32)
        tokens = np.maximum(1, (tokens * lot.uniform(0.8, 1.25, (count, lists))).astype(np.int32))
        sizes = tokens.sum(1) + lists + 1
        words = lot.integers(10, 3900, int(sizes.sum()), dtype=np.int32)
        starts = np.cumsum(sizes) - sizes
        for column in range(lists):
            words[starts + column] = tokens[:, column]
        lengths = (tokens.max(1) + 2).astype(np.int32)
        words[starts + lists] = lengths
        yield Packed(words, sizes.astype(np.int32), lengths)


def make_loop(folder: Path, kind: str, rows: int, tokenizer: Tokenizer) -> TrainLoop:
    """A loop whose batches have eight draws of eight languages."""
    task = kind.partition("-")[0]
    columns: Columns = dict.fromkeys(("source", "target") if task == "mt" else ("tokens",), "ints")
    datasets = []
    for number, language in enumerate(LANGUAGES):
        condition = Condition(task, language, LANGUAGES[number - 1] if task == "mt" else None)
        dataset = write_packed(
            folder / f"{kind}-{language}", packs(rows, len(columns), number), columns={**columns, "length": "int"},
            meta={"labels": []}, run=1 if task == "mt" else LINES_PER_RUN,
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
    """Tokens of a step without padding, of the encoder or of the decoder if there is no encoder."""
    return sum(batch.num_tokens for batch in batches.micro_batches)


def rate(loop: TrainLoop, first: int, steps: int, threads: int) -> float:
    """Tokens per second of some steps."""
    began = time.perf_counter()
    if threads == 0:
        tokens = sum(tokens_of(loop.batches(step)) for step in range(first, first + steps))
    else:
        with ReadAhead(loop.batches, ahead=threads, stop=first + steps, threads=threads) as batches:
            tokens = sum(tokens_of(batches.get(step)) for step in range(first, first + steps))
    return tokens / (time.perf_counter() - began)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=TRAIN, default=list(TRAIN))
    parser.add_argument("--rows", type=int, default=300_000, help="of each of eight datasets")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"rows": options.rows, "steps": options.steps, "rounds": options.rounds, "rates": {}}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_tokenizer(Path(folder))
        for kind in options.kinds:
            loop = make_loop(Path(folder), kind, options.rows, tokenizer)
            rates: dict[int, list[float]] = {threads: [] for threads in THREADS}
            step = 0
            for _ in range(options.rounds):
                for threads in THREADS:
                    rates[threads].append(rate(loop, step, options.steps, threads))
                    step += options.steps
            found["rates"][kind] = rates
            medians = {threads: round(statistics.median(values)) for threads, values in rates.items()}
            print(f"{kind}: tokens per second by threads: {medians}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
