"""Growth and generation at scale: the 300th language against the first, 16 conditions at once against one by one.

    python -m benchmarks.generation --json benchmarks/results/generation.json

Ratios in one run. CPU time of one thread, interleaved; the minimum and the 20th percentile are kept.
"""

import statistics
import time
from typing import Any

import torch

from benchmarks.measure import Json, Rounds, Tiny, command, interleave, low, make_app, use_one_thread, write_results
from polyloom.conditions import Inventory
from polyloom.methods import METHODS, Method, build_method
from polyloom.weights import BackboneShape, Site

app = make_app()
NUM_LANGUAGES = 300
NUM_CONDITIONS = 16


def shape(layers: int, width: int) -> BackboneShape:
    """Return an encoder of so many layers."""
    sites = tuple(Site("encoder", i) for i in range(layers))
    return BackboneShape("encoder", width, sites, ("layer", "output", "norm"))


def build(name: str, backbone: BackboneShape, languages: int, **settings: Any) -> Method:
    """Return a method for so many languages."""
    inventory = Inventory.of((f"l{i}" for i in range(languages)), ["pos", "ner"])
    return build_method(METHODS[name].config_type(**settings), shape=backbone, inventory=inventory).eval()


def add_languages(name: str, backbone: BackboneShape, **settings: Any) -> dict[str, Any]:
    """Add languages in turns to a model that has few and to one that has almost 300.

    A bank sometimes has to move to a larger place. That is rare (seven times on the way to 300) and reported apart.
    """
    models = {
        "few": build(name, backbone, 1, **settings),
        "many": build(name, backbone, NUM_LANGUAGES - 42, **settings),
    }
    works = {key: lambda number, model=model: model.add_language(f"new{number}") for key, model in models.items()}
    times = interleave(works, rounds=42, clock=time.process_time, warmup=0)
    few, many = (1e3 * statistics.median(seconds) for seconds in times.values())
    return {
        "method": name, "settings": settings, "first_ms": few, "last_ms": many, "ratio": many / few,
        "moving_ms": 1e3 * max(times["many"]),
    }  # fmt: skip


@torch.no_grad()
def generate(name: str, backbone: BackboneShape, *, rounds: int, **settings: Any) -> dict[str, Any]:
    """Time one call for 16 conditions and 16 calls for one, in turns."""
    method = build(name, backbone, NUM_CONDITIONS, **settings)
    conditions = [f"pos/l{i}" for i in range(NUM_CONDITIONS)]
    together = method.encode(conditions)
    singles = [method.encode([condition]) for condition in conditions]

    def all_at_once(_: int) -> None:
        method(together)

    def one_by_one(_: int) -> None:
        for ids in singles:
            method(ids)

    times = interleave({"batched": all_at_once, "one": one_by_one}, rounds=rounds, clock=time.process_time)
    batched, one = (low([1e3 * seconds for seconds in values]) for values in times.values())
    return {
        "method": name, "settings": settings, "layers": len(backbone.sites), "width": backbone.width,
        "batched_ms": batched, "one_by_one_ms": one,
        "speedup": one["minimum"] / batched["minimum"], "speedup_p20": one["p20"] / batched["p20"],
    }  # fmt: skip


@command(app, __doc__)
def main(*, rounds: Rounds = 40, tiny: Tiny = False, file: Json = None) -> None:
    """Measure all methods."""
    use_one_thread()
    small, base = shape(6, 384), shape(12, 768)
    if tiny:
        adding = [add_languages("lang-adapters", small, adapter_size=24)]
        generating = [generate("hyperx", small, rounds=rounds, adapter_size=48, projection_size=192)]
    else:
        adding = [add_languages(name, base, adapter_size=48) for name in ("madx", "lang-adapters", "hyperx")]
        generating = [
            generate("hyperx", small, rounds=rounds, adapter_size=24, projection_size=32),
            generate("hyperx", small, rounds=rounds, adapter_size=48, projection_size=192),
            generate("hyperx", base, rounds=rounds, adapter_size=48, projection_size=32),
            generate("hyperx", base, rounds=rounds, adapter_size=48, projection_size=192),
            generate("hyperx", base, rounds=rounds, adapter_size=256, projection_size=32),
            generate("hyper-adapters", base, rounds=rounds, adapter_size=48, hidden_size=102),
            generate("hyperx", base, rounds=rounds, adapter_size=256, projection_size=192),
        ]
    lines = [
        f"add {row['method']:14s} first {row['first_ms']:7.2f} ms  300th {row['last_ms']:7.2f} ms  "
        f"ratio {row['ratio']:.2f}  (moving the bank: {row['moving_ms']:.0f} ms)"
        for row in adding
    ] + [
        f"generate {row['method']:14s} {row['layers']}×{row['width']} {row['settings']}: "
        f"16 at once {row['batched_ms']['minimum']:.1f} ms, one by one {row['one_by_one_ms']['minimum']:.1f} ms, "
        f"speed-up {row['speedup']:.2f} (p20 {row['speedup_p20']:.2f})"
        for row in generating
    ]
    print("\n".join(lines))
    write_results({"adding": adding, "generating": generating}, file)


if __name__ == "__main__":
    app()
