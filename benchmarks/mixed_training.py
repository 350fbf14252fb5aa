"""What it costs to train on rows of many languages in one batch, against batches of one language.

    python -m benchmarks.mixed_training --backbone DIR --data DIR --json benchmarks/results/mixed_training.json

Steps of Hyper-X on raw text in filled rows, so that every step has as many tokens: batches of 1, 4 and 16 languages,
in turn, round after round; medians of paired ratios, with the 20th and 80th percentile. One thread, a quiet machine.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from benchmarks.training import WARMUP, seconds

import polyloom as pl
from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.mixture import MixtureConfig
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.methods.hyperx import HyperXConfig
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import TrainLoop
from polyloom.training.plan import StagePlan
from polyloom.training.prepare import prepare_dataset, training_datasets

LANGUAGES = ("bg", "cs", "de", "en", "es", "fi", "fr", "id", "it", "kk", "pl", "te", "tr", "uk", "vi", "yo")
KINDS = (1, 4, 16)


def make_loop(backbone: Path, data: Path, datasets_per_batch: int) -> TrainLoop:
    """A loop that learns raw text, sixteen rows at a time."""
    tokenizer = load_tokenizer(backbone)
    datasets = {
        (c := Condition("mlm", language)): prepare_dataset(
            c, [resolve(f"leipzig:{language}", root=data)], tokenizer=tokenizer
        )
        for language in LANGUAGES
    }
    torch.manual_seed(0)
    loaded = pl.load_backbone(backbone, dtype=torch.bfloat16, attention="eager")
    config = HyperXConfig(adapter_size=48, projection_size=64)
    model = pl.Model(loaded, config, languages=LANGUAGES, tasks={"mlm": None})
    (stage,) = model.method.stages()
    train = TrainConfig(
        steps=1000,
        rows_per_batch=16,
        grad_accum_steps=4,
        max_length=128,
        dropout=False,
        pack_sequences=True,
        mlm_candidates="corpus",
    )
    chosen = training_datasets(datasets, method=model.method, labels={}, stage=stage)
    mixture = MixtureConfig(strategy="round-robin", datasets_per_batch=datasets_per_batch)
    return TrainLoop(
        model,
        StagePlan(stage, OptimConfig(lr=1e-4), train, mixture, chosen),
        tokenizer=tokenizer,
        process_group=ProcessGroup(),
    )


def measure(backbone: Path, data: Path, rounds: int) -> dict[str, Any]:
    """Seconds of every step, by the number of languages in its batch."""
    loops = {kind: make_loop(backbone, data, kind) for kind in KINDS}
    times: dict[str, list[float]] = {str(kind): [] for kind in KINDS}
    for index in range(WARMUP + rounds):
        for kind, loop in loops.items():
            spent = seconds(lambda loop=loop, index=index: loop.take(index))  # type: ignore[misc]
            if index >= WARMUP:
                times[str(kind)].append(spent)
    return {"rounds": rounds, "seconds": times}


def summarize(raw: dict[str, Any]) -> dict[str, Any]:
    """Throughput against batches of one language: median, 20th and 80th percentile of paired ratios."""
    times = {kind: np.array(values) for kind, values in raw["seconds"].items()}
    ratios = {kind: np.quantile(times["1"] / spent, [0.5, 0.2, 0.8]).round(3).tolist() for kind, spent in times.items()}
    return {"throughput_against_one_language": ratios}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    raw = measure(options.backbone, options.data, options.rounds)
    result = summarize(raw) | {"raw": raw}
    print(json.dumps(result["throughput_against_one_language"], indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
