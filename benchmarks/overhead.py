"""What adapters cost a forward pass: 16 rows × 64 tokens, the bare backbone against one and against 16 adapters.

    python -m benchmarks.overhead --json benchmarks/results/overhead.json

Weights are ready, as in serving with a cache; the last column makes them anew. CPU time of one thread, interleaved, 40
rounds; the minimum and the 20th percentile are kept.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch
from benchmarks.scale import interleaved

import polyloom as pl

ROWS, LENGTH = 16, 64
LANGUAGES = tuple(f"l{i}" for i in range(ROWS))
BACKBONES = {
    "6×384": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "12×768": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
RATIOS = [
    ("one_ms", "bare_ms"),
    ("sixteen_ms", "bare_ms"),
    ("sixteen_ms", "one_ms"),
    ("sixteen_made_anew_ms", "bare_ms"),
]


@torch.no_grad()
def measure(backbone: pl.Backbone, config: Any, *, rounds: int) -> dict[str, Any]:
    """Time the bare model, one adapter for all rows, 16 different ones, and 16 that are made first."""
    torch.manual_seed(0)
    model = pl.Model(backbone, config, languages=LANGUAGES, tasks=["pos"]).eval()
    inputs = {"input_ids": torch.randint(5, 900, (ROWS, LENGTH)), "attention_mask": torch.ones(ROWS, LENGTH).long()}
    same, mixed = ["pos/l0"] * ROWS, [f"pos/{language}" for language in LANGUAGES]
    ready = {"same": model.weights(same), "mixed": model.weights(mixed)}
    base_model = backbone.model.base_model  # without the head, whose cost depends on the vocabulary

    def run(name: str) -> Callable[[], None]:
        def with_weights() -> None:
            with backbone.using(ready[name], num_rows=ROWS):
                base_model(**inputs)

        return with_weights

    def anew() -> None:
        with backbone.using(model.weights(mixed), num_rows=ROWS):
            base_model(**inputs)

    bare, one, sixteen, made = interleaved(lambda: base_model(**inputs), run("same"), run("mixed"), anew, rounds=rounds)
    return {"bare_ms": bare, "one_ms": one, "sixteen_ms": sixteen, "sixteen_made_anew_ms": made}


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", choices=BACKBONES, nargs="+", default=["6×384"])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    print(f"{'':44s} one/bare  16/bare  16/one  made anew/bare   (minimum; 20th percentile)")
    for shape in options.backbone:
        backbone = pl.backbone_from_config({"model_type": "bert", "vocab_size": 1000} | BACKBONES[shape])
        for config in (
            pl.HyperXConfig(adapter_size=48),
            pl.HyperXConfig(adapter_size=256),
            pl.LangAdaptersConfig(adapter_size=48),
            pl.MadXConfig(adapter_size=192, task_adapter_size=24),
        ):
            row = measure(backbone, config, rounds=options.rounds)
            name = f"{shape} {config.name} b={config.adapter_size}"
            ratios = {key: [row[over][key] / row[under][key] for over, under in RATIOS] for key in ("minimum", "p20")}
            results.append({"name": name, "rows": ROWS, "length": LENGTH} | row | {"ratios": ratios})
            shown = "  ".join(f"{a:5.2f};{b:5.2f}" for a, b in zip(ratios["minimum"], ratios["p20"], strict=True))
            print(f"{name:44s} {shown}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
