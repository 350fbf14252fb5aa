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
from polyloom.data.catalog import resolve
from polyloom.data.mixture import MixtureConfig
from polyloom.data.pieces import load_pieces
from polyloom.methods.hyperx import HyperXConfig
from polyloom.train.distributed import Team
from polyloom.train.loop import Loop, StagePlan
from polyloom.train.prepare import prepare_cell, training_cells
from polyloom.train.settings import OptimConfig, TrainConfig
from polyloom.types import Condition

LANGUAGES = ("bg", "cs", "de", "en", "es", "fi", "fr", "id", "it", "kk", "pl", "te", "tr", "uk", "vi", "yo")
KINDS = (1, 4, 16)


def make_loop(backbone: Path, data: Path, cells_per_batch: int) -> Loop:
    """A loop that learns raw text, sixteen rows at a time."""
    pieces = load_pieces(backbone)
    cells = {
        (c := Condition("mlm", language)): prepare_cell(c, [resolve(f"leipzig:{language}", root=data)], pieces=pieces)
        for language in LANGUAGES
    }
    torch.manual_seed(0)
    loaded = pl.load_backbone(backbone, dtype=torch.bfloat16, attention="eager")
    config = HyperXConfig(adapter_size=48, projection_size=64)
    model = pl.Model(loaded, config, languages=LANGUAGES, tasks={"mlm": None})
    (stage,) = model.method.stages()
    train = TrainConfig(
        steps=1000, rows_per_batch=16, accumulate=4, max_length=128, dropout=False, fill=True, vocabulary="corpus"
    )
    chosen = training_cells(cells, method=model.method, labels={}, stage=stage)
    mixture = MixtureConfig(kind="round-robin", cells_per_batch=cells_per_batch)
    return Loop(model, StagePlan(stage, OptimConfig(lr=1e-4), train, mixture, chosen), pieces=pieces, team=Team())


def measure(backbone: Path, data: Path, rounds: int) -> dict[str, Any]:
    """Seconds of every step, by the number of languages in its batch."""
    loops = {kind: make_loop(backbone, data, kind) for kind in KINDS}
    times: dict[str, list[float]] = {str(kind): [] for kind in KINDS}
    for index in range(WARMUP + rounds):
        for kind, loop in loops.items():
            spent = seconds(lambda loop=loop, index=index: loop._take(index))  # type: ignore[misc]  # noqa: SLF001
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
