"""What a step of translation training costs (G11): a hypernetwork against stored adapters and full fine-tuning.

    python -m benchmarks.translation_training --data DIR --json benchmarks/results/translation_training.json

Every round takes the same step (same batch of four directions, 1,024 tokens) once with each variant, in turn; ratios of
the same step, of wall time on a quiet machine with one thread. Only adapters learn, save with `full`.

    full         everything learns, no adapters
    stored       an adapter per language
    hyper-204    adapters of the same shapes, made by a hypernetwork of width 204; hyper-612: of width 612
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from benchmarks.training import WARMUP, seconds

from polyloom.backbones import backbone_from_config
from polyloom.conditions import Condition
from polyloom.config.recipe import PRESETS
from polyloom.data.catalog import Corpus, resolve
from polyloom.data.mixture import MixtureConfig
from polyloom.data.records import Bitext
from polyloom.data.tokenization.tokenizer import Tokenizer, load_tokenizer
from polyloom.data.tokenization.vocabulary import VocabularyConfig, train_vocabulary
from polyloom.methods.base import MethodConfig, Stage
from polyloom.methods.full import DenseConfig
from polyloom.methods.hyper_adapters import HyperAdaptersConfig
from polyloom.methods.translation_banks import LangAdaptersConfig
from polyloom.model import Model
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import ProcessGroup
from polyloom.training.loop import TrainLoop
from polyloom.training.plan import StagePlan
from polyloom.training.prepare import prepare_dataset, training_datasets

LANGUAGES = ("eng", "deu", "spa", "tur", "fin")
CONDITIONS = [Condition("mt", *pair) for x in LANGUAGES[1:] for pair in (("eng", x), (x, "eng"))]
Variants = dict[str, tuple[MethodConfig, Stage]]


def variants(adapter_size: int) -> Variants:
    """Settings of every variant, and what learns in it."""
    hyper = Stage("frozen", ("hypernetwork", "embeddings", "heads"))
    return {
        "full": (DenseConfig(), Stage("joint", ("backbone", "heads"))),
        "stored": (LangAdaptersConfig(adapter_size=adapter_size), Stage("frozen", ("adapters", "heads"))),
        "hyper-204": (HyperAdaptersConfig(adapter_size=adapter_size, hidden_size=204), hyper),
        "hyper-612": (HyperAdaptersConfig(adapter_size=adapter_size, hidden_size=612), hyper),
    }


def corpus_of(condition: Condition, data: Path) -> Corpus:
    """Real sentences."""
    (other,) = set(condition.languages) - {"eng"}
    return resolve(f"tatoeba-mt:eng-{other}/train[:5000]", root=data)


def vocabulary(folder: Path, data: Path) -> Tokenizer:
    """Eight thousand pieces of these languages."""
    texts: dict[str, list[str]] = {language: [] for language in LANGUAGES}
    for condition in CONDITIONS[::2]:
        for record in corpus_of(condition, data).records("bitext"):
            assert isinstance(record, Bitext)
            texts["eng"].append(record.source)
            texts[condition.languages[1]].append(record.target)
    train_vocabulary(texts, folder, config=VocabularyConfig(size=8000), languages=LANGUAGES)
    return load_tokenizer(str(folder))


def make_loop(preset: str, config: MethodConfig, stage: Stage, *, data: Path, tokenizer: Tokenizer) -> TrainLoop:
    """A loop ready to take steps."""
    datasets = {c: prepare_dataset(c, [corpus_of(c, data)], tokenizer=tokenizer) for c in CONDITIONS}
    special = {
        "pad_token_id": tokenizer.pad_id,
        "eos_token_id": tokenizer.eos_id,
        "decoder_start_token_id": tokenizer.eos_id,
    }
    torch.manual_seed(0)
    backbone = backbone_from_config({**PRESETS[preset], **special, "vocab_size": tokenizer.vocab_size})
    model = Model(backbone, config, languages=LANGUAGES, tasks={"mt": None}, directions=["eng/*", "*/eng"])
    train = TrainConfig(steps=1000, tokens_per_batch=1024, max_length=64, dropout=False, label_smoothing=0.1)
    chosen = training_datasets(datasets, method=model.method, labels={}, stage=stage)
    plan = StagePlan(stage, OptimConfig(lr=1e-4), train, MixtureConfig(datasets_per_batch=4), chosen)
    return TrainLoop(model, plan, tokenizer=tokenizer, process_group=ProcessGroup())


def measure(preset: str, data: Path, *, rounds: int) -> dict[str, Any]:
    """All variants, in turn."""
    size = 32 if preset == "transformer-mini" else 128
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = vocabulary(Path(folder), data)
        loops = {
            name: make_loop(preset, config, stage, data=data, tokenizer=tokenizer)
            for name, (config, stage) in variants(size).items()
        }
    times: dict[str, list[float]] = {name: [] for name in loops}
    tokens = []
    for index in range(WARMUP + rounds):
        for name, loop in loops.items():
            steps: list[Any] = []
            spent = seconds(lambda loop=loop, steps=steps, index=index: steps.append(loop.take(index)))  # type: ignore[misc]
            assert not steps[0].skipped
            if index >= WARMUP:
                times[name].append(spent)
        if index >= WARMUP:
            tokens.append(steps[0].tokens)
    learn = {name: sum(p.numel() for p in loop.model.parameters() if p.requires_grad) for name, loop in loops.items()}
    return {"preset": preset, "rounds": rounds, "learning": learn, "tokens": tokens, "seconds": times}


def summarize(raw: dict[str, Any]) -> dict[str, Any]:
    """Ratios of the same step: median and 20th percentile; and rates."""
    times = {name: np.array(values) for name, values in raw["seconds"].items()}

    def ratio(name: str, other: str) -> dict[str, float]:
        each = times[name] / times[other]
        return {
            "median": float(np.median(each)),
            "p20": float(np.percentile(each, 20)),
            "of minima": float(times[name].min() / times[other].min()),
        }

    pairs = [(h, other) for h in ("hyper-204", "hyper-612") for other in ("stored", "full")]
    rates = {name: float(sum(raw["tokens"]) / spent.sum()) for name, spent in times.items()}
    return {f"{a} / {b}": ratio(a, b) for a, b in pairs} | {"source tokens per second": rates}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--preset", choices=PRESETS, default="transformer-base")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    raw = measure(arguments.preset, arguments.data, rounds=arguments.rounds)
    result = {"summary": summarize(raw), "raw": raw}
    print(json.dumps(result["summary"] | {"learning": raw["learning"]}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
