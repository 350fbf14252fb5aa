"""What a training step costs, and what it is spent on, on real text and a small pretrained backbone.

    python -m benchmarks.training --backbone DIR --data DIR --json benchmarks/results/training.json

Every round takes the same step (same batch, tagging English) once with each variant, in turn; the 20th percentile and
the minimum over rounds are kept, of wall time on a quiet machine with one thread.

    bare         the backbone alone, forward and backward, everything learning, no optimizer
    full         full fine-tuning, a whole step
    hyperx       Hyper-X: a hypernetwork makes the adapters, a whole step
    stored       adapters of the same shapes, stored; a whole step
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch

import polyloom as pl
from polyloom.checkpoint import backbone_identity, describe_model, trained_parameters, write_checkpoint
from polyloom.conditions import Condition
from polyloom.data.catalog import resolve
from polyloom.data.mixture import MixtureConfig
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.methods.base import MethodConfig, Stage
from polyloom.methods.full import FullConfig
from polyloom.methods.hyperx import HyperXConfig
from polyloom.methods.translation_banks import LangAdaptersConfig
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import TrainLoop
from polyloom.training.plan import StagePlan
from polyloom.training.prepare import label_sets, prepare_dataset, training_datasets

LANGUAGES = ("en", "de", "sv", "tr")
WARMUP = 3


def make_loop(
    folder: Path, config: MethodConfig, *, stage: Stage | None, data: Path, tokenizer: Tokenizer
) -> TrainLoop:
    """A loop that tags English, ready to take steps."""
    condition = Condition("pos", "en")
    datasets = {condition: prepare_dataset(condition, [resolve("ud:en_ewt/train", root=data)], tokenizer=tokenizer)}
    labels = label_sets(datasets)
    torch.manual_seed(0)
    model = pl.Model(pl.load_backbone(folder), config, languages=LANGUAGES, tasks=labels)
    stage = stage or model.method.stages()[0]
    train = TrainConfig(steps=1000, rows_per_batch=16, max_length=128, dropout=False)
    chosen = training_datasets(datasets, method=model.method, labels=labels, stage=stage)
    plan = StagePlan(stage, OptimConfig(lr=1e-4), train, MixtureConfig(), chosen)
    return TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())


def bare_step(loop: TrainLoop) -> Callable[[int], None]:
    """Forward and backward through the bare backbone, for the batch of a step."""
    backbone = loop.model.backbone

    def run(index: int) -> None:
        (batch,), _, _ = loop.batches(index)
        backbone.hidden(**batch.inputs).sum().backward()  # type: ignore[no-untyped-call]
        backbone.zero_grad(set_to_none=True)

    return run


def seconds(work: Callable[[], Any]) -> float:
    """Wall time."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure(folder: Path, data: Path, rounds: int) -> dict[str, Any]:
    """All variants, in turn."""
    tokenizer = load_tokenizer(folder)
    stored = Stage("stored", ("adapters", "backbone.norms", "heads"))
    variants = {
        "full": make_loop(folder, FullConfig(), stage=None, data=data, tokenizer=tokenizer),
        "hyperx": make_loop(
            folder, HyperXConfig(adapter_size=48, norm="before"), stage=None, data=data, tokenizer=tokenizer
        ),
        "stored": make_loop(
            folder,
            LangAdaptersConfig(adapter_size=48, placement="output"),
            stage=stored,
            data=data,
            tokenizer=tokenizer,
        ),
    }
    full, hyperx = variants["full"], variants["hyperx"]
    works: dict[str, Callable[[int], Any]] = {"bare": bare_step(full)}
    works |= {name: loop.take for name, loop in variants.items()}
    rows = hyperx.model.method.encode(["pos/en"])

    def generate(_: int) -> None:
        made = hyperx.model.method(rows)
        torch.stack([t.sum() for block in made.blocks for t in block.tensors.values()]).sum().backward()  # type: ignore[no-untyped-call]
        hyperx.optimizer.zero_grad()

    works |= {"generation": generate, "data": full.batches}
    times: dict[str, list[float]] = {name: [] for name in works}
    tokens = []
    for index in range(WARMUP + rounds):
        for name, work in works.items():
            spent = seconds(lambda work=work, index=index: work(index))  # type: ignore[misc]
            if index >= WARMUP:
                times[name].append(spent)
        if index >= WARMUP:
            tokens.append(sum(batch.num_tokens for batch in full.batches(index).micro_batches))
    return {"rounds": rounds, "tokens": tokens, "seconds": times, "checkpoint_seconds": checkpoint(hyperx)}


def checkpoint(loop: TrainLoop, repeats: int = 5) -> list[float]:
    """Writing weights and optimizer state to disk."""
    identity, model = backbone_identity(loop.model), loop.model

    def write(path: Path) -> None:
        manifest = describe_model(model) | {"backbone": identity}
        write_checkpoint(path, trained_parameters(model), manifest, training=(loop.optimizer.state(), {}))

    with tempfile.TemporaryDirectory() as folder:
        return [seconds(lambda i=i: write(Path(folder) / str(i))) for i in range(repeats)]  # type: ignore[misc]


def summarize(raw: dict[str, Any]) -> dict[str, Any]:
    """Ratios of totals over rounds, of minima of ratios, and rates."""
    times = {name: np.array(values) for name, values in raw["seconds"].items()}
    tokens = np.array(raw["tokens"])

    def ratio(name: str, other: str) -> dict[str, float]:
        each = times[name] / times[other]
        return {"p20": float(np.percentile(each, 20)), "median": float(np.median(each)), "min": float(each.min())}

    step = float(np.median(times["hyperx"]))
    save = float(np.median(raw["checkpoint_seconds"]))
    return {
        "tokens_per_second": {name: float(tokens.sum() / times[name].sum()) for name in times if name != "generation"},
        "hyperx / bare": ratio("hyperx", "bare"),
        "hyperx / stored (G11 ≤ 1.05)": ratio("hyperx", "stored"),
        "hyperx / full (G11 ≤ 0.75)": ratio("hyperx", "full"),
        "share of data": ratio("data", "hyperx"),
        "share of weight generation": ratio("generation", "hyperx"),
        "checkpoint seconds": save,
        "steps between checkpoints for 1 %": save / step / 0.01,
        "input pipeline / training": ratio("hyperx", "data"),
    }


def main() -> None:
    """Measure, print, and keep the raw times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raw = measure(arguments.backbone, arguments.data, arguments.rounds)
    result = {"summary": summarize(raw), "raw": raw}
    print(json.dumps(result["summary"], indent=2, ensure_ascii=False))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
