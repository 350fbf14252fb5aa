"""Growth and generation at scale: the 300th language against the first, 16 conditions at once against one by one.

    python benchmarks/scale.py --json benchmarks/results/scale.json

Ratios in one run. CPU time of one thread, interleaved, 40 rounds; the minimum and the 20th percentile are kept.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as `polyloom` does: fresh memory comes in 2 MB pages

import torch

from polyloom.conditions import Inventory
from polyloom.methods import METHODS, Method, build_method
from polyloom.weights import BackboneShape, Site

NUM_LANGUAGES = 300
NUM_CONDITIONS = 16


def shape(layers: int, width: int) -> BackboneShape:
    """An encoder of so many layers."""
    return BackboneShape(
        "encoder", width, tuple(Site("encoder", i) for i in range(layers)), ("layer", "output", "norm")
    )


def build(name: str, backbone: BackboneShape, languages: int, **settings: Any) -> Method:
    """A method for so many languages."""
    world = Inventory.of((f"l{i}" for i in range(languages)), ["pos", "ner"])
    return build_method(METHODS[name].config_type(**settings), shape=backbone, inventory=world).eval()


def adding(name: str, backbone: BackboneShape, **settings: Any) -> dict[str, Any]:
    """Add languages in turns to a model that has few and to one that has almost 300.

    Now and then a bank must move to a larger place; that is rare (seven times on the way to 300), and told separately.
    """
    few, many = (build(name, backbone, languages, **settings) for languages in (1, NUM_LANGUAGES - 42))
    costs: dict[str, list[float]] = {"few": [], "many": []}
    for number in range(42):
        for key, method in (("few", few), ("many", many)):
            began = time.process_time()
            method.add_language(f"new{number}")
            costs[key].append(1e3 * (time.process_time() - began))
    first, last = statistics.median(costs["few"]), statistics.median(costs["many"])
    return {
        "method": name,
        "settings": settings,
        "first_ms": first,
        "last_ms": last,
        "ratio": last / first,
        "moving_ms": max(costs["many"]),
    }


@torch.no_grad()
def generating(name: str, backbone: BackboneShape, *, rounds: int, **settings: Any) -> dict[str, Any]:
    """Time one call for 16 conditions and 16 calls for one, in turns."""
    method = build(name, backbone, NUM_CONDITIONS, **settings)
    conditions = [f"pos/l{i}" for i in range(NUM_CONDITIONS)]
    together = method.encode(conditions)
    singles = [method.encode([condition]) for condition in conditions]

    def all_at_once() -> None:
        method(together)

    def one_by_one() -> None:
        for ids in singles:
            method(ids)

    batched, looped = interleaved(all_at_once, one_by_one, rounds=rounds)
    return {
        "method": name,
        "settings": settings,
        "layers": len(backbone.sites),
        "width": backbone.width,
        "batched_ms": batched,
        "one_by_one_ms": looped,
        "speedup": looped["minimum"] / batched["minimum"],
        "speedup_p20": looped["p20"] / batched["p20"],
    }


def interleaved(*functions: Callable[[], object], rounds: int) -> list[dict[str, float]]:
    """CPU milliseconds of each function, called in turns."""
    costs: list[list[float]] = [[] for _ in functions]
    for number in range(rounds + 2):
        for function, measured in zip(functions, costs, strict=True):
            began = time.process_time()
            function()
            if number >= 2:  # the first two warm up
                measured.append(1e3 * (time.process_time() - began))
    return [{"minimum": min(c), "p20": statistics.quantiles(c, n=5)[0]} for c in costs]


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smallest sizes and few rounds, for tests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 8 if options.quick else 40
    small, base = shape(6, 384), shape(12, 768)
    if options.quick:
        grown = [adding("lang-adapters", small, adapter_size=24)]
        made = [generating("hyperx", small, rounds=rounds, adapter_size=48, projection_size=192)]
    else:
        grown = [
            adding("madx", base, adapter_size=48),
            adding("lang-adapters", base, adapter_size=48),
            adding("hyperx", base, adapter_size=48),
        ]
        made = [
            generating("hyperx", small, rounds=rounds, adapter_size=24, projection_size=32),
            generating("hyperx", small, rounds=rounds, adapter_size=48, projection_size=192),
            generating("hyperx", base, rounds=rounds, adapter_size=48, projection_size=32),
            generating("hyperx", base, rounds=rounds, adapter_size=48, projection_size=192),
            generating("hyperx", base, rounds=rounds, adapter_size=256, projection_size=32),
            generating("hyper-adapters", base, rounds=rounds, adapter_size=48, hidden_size=102),
            generating("hyperx", base, rounds=rounds, adapter_size=256, projection_size=192),
        ]
    for row in grown:
        print(f"add {row['method']:14s} first {row['first_ms']:7.2f} ms  300th {row['last_ms']:7.2f} ms  "
              f"ratio {row['ratio']:.2f}  (moving the bank: {row['moving_ms']:.0f} ms)")  # fmt: skip
    for row in made:
        print(f"generate {row['method']:14s} {row['layers']}×{row['width']} {row['settings']}: "
              f"16 at once {row['batched_ms']['minimum']:.1f} ms, one by one {row['one_by_one_ms']['minimum']:.1f} ms, "
              f"speed-up {row['speedup']:.2f} (p20 {row['speedup_p20']:.2f})")  # fmt: skip
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"adding": grown, "generating": made}, indent=1) + "\n")


if __name__ == "__main__":
    main()
