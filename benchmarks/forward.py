"""Forward passes with adapters: what they cost, and whether languages that share a batch disturb one another."""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from tests.parity.side import BACKBONES as PARITY_BACKBONES
from tests.parity.side import Case, ask, side_by_side, versions

import polyloom as pl
from benchmarks.measure import (
    Json,
    PeerPython,
    Rounds,
    Tiny,
    command,
    interleave,
    low,
    make_app,
    use_one_thread,
    write_results,
)
from polyloom.backbones import Backbone

app = make_app()
ROWS, LENGTH = 16, 64
LANGUAGES = tuple(f"l{i}" for i in range(ROWS))
BACKBONES = {
    "6×384": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "12×768": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
METHODS = (
    pl.HyperXConfig(adapter_size=48),
    pl.HyperXConfig(adapter_size=256),
    pl.LangAdaptersConfig(adapter_size=48),
    pl.MadXConfig(adapter_size=192, task_adapter_size=24),
)
RATIOS = [
    ("one_ms", "bare_ms"),
    ("sixteen_ms", "bare_ms"),
    ("sixteen_ms", "one_ms"),
    ("sixteen_made_anew_ms", "bare_ms"),
]


@command(app)
def overhead(
    shapes: Annotated[list[str] | None, typer.Option("--backbone", help="6×384 (default) or 12×768.")] = None,
    *,
    rounds: Rounds = 40,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """What adapters cost a forward pass: 16 rows × 64 tokens, the bare backbone against one and against 16 adapters.

        python -m benchmarks.forward overhead --json benchmarks/results/forward_overhead.json

    Weights are ready, as in serving with a cache; the last column makes them anew. CPU time of one thread, interleaved;
    the minimum and the 20th percentile are kept.
    """
    use_one_thread()
    results = []
    print(f"{'':44s} one/bare  16/bare  16/one  made anew/bare   (minimum; 20th percentile)")
    for shape in ["tiny"] if tiny else shapes or ["6×384"]:
        backbone = pl.backbone_from_config({"model_type": "bert", "vocab_size": 1000} | BACKBONES[shape])
        for config in METHODS:
            times = time_forward(backbone, config, rounds=rounds)
            paired = {
                key: [times[over][key] / times[under][key] for over, under in RATIOS] for key in ("minimum", "p20")
            }
            name = f"{shape} {config.name} b={config.adapter_size}"
            results.append({"name": name, "rows": ROWS, "length": LENGTH} | times | {"ratios": paired})
            columns = "  ".join(f"{a:5.2f};{b:5.2f}" for a, b in zip(paired["minimum"], paired["p20"], strict=True))
            print(f"{name:44s} {columns}", flush=True)
    write_results(results, file)


@torch.no_grad()
def time_forward(backbone: Backbone, config: Any, *, rounds: int) -> dict[str, Any]:
    """Time the bare model, one adapter for all rows, 16 different ones, and 16 that are made first."""
    torch.manual_seed(0)
    model = pl.Model(backbone, config, languages=LANGUAGES, tasks=["pos"]).eval()
    inputs = {"input_ids": torch.randint(5, 900, (ROWS, LENGTH)), "attention_mask": torch.ones(ROWS, LENGTH).long()}
    same, mixed = ["pos/l0"] * ROWS, [f"pos/{language}" for language in LANGUAGES]
    base_model = backbone.model.base_model  # without the head, whose cost depends on the vocabulary

    def bare(_: int) -> None:
        base_model(**inputs)

    def ready(conditions: Sequence[str]) -> Callable[[int], None]:
        weights = model.weights(conditions)

        def run(_: int) -> None:
            with backbone.using(weights, num_rows=ROWS):
                base_model(**inputs)

        return run

    def anew(_: int) -> None:
        with backbone.using(model.weights(mixed), num_rows=ROWS):
            base_model(**inputs)

    works = {"bare_ms": bare, "one_ms": ready(same), "sixteen_ms": ready(mixed), "sixteen_made_anew_ms": anew}
    times = interleave(works, rounds=rounds, clock=time.process_time)
    return {name: low([1e3 * seconds for seconds in values]) for name, values in times.items()}


@command(app)
def mixed(*, python: PeerPython = None, tiny: Tiny = False, file: Json = None) -> None:
    """One batch with two languages: `adapters` 1.3.0 and polyloom, against each language run alone.

        python -m benchmarks.forward mixed --python PYTHON --json benchmarks/results/forward_mixed.json

    Both sides have the same backbone, the same MAD-X weights (large, random) and the same inputs. The right answer is
    that of `adapters` when it runs each language's stack alone. `tests/parity` asserts the same comparison.
    """
    if python is None:
        raise typer.BadParameter("name the Python of a virtual environment with adapters 1.3.0", param_hint="--python")
    families = list(PARITY_BACKBONES)[: 1 if tiny else None]
    cases = [Case(family, invertible) for family in families for invertible in (False, True)]
    with tempfile.TemporaryDirectory() as directory:
        pairs = ask(str(python), Path(directory), cases)
    results = [result for pair in pairs.values() for result in side_by_side(pair)]

    table = Table(title="Largest error of the logits in a batch of three English and three Swahili rows")
    for column in ("backbone", "invertible", "composition in adapters"):
        table.add_column(column)
    for column in ("adapters 1.3.0", "polyloom"):
        table.add_column(column, justify="right")
    for result in results:
        errors = [f"{result[side]['logits']:.2g}" for side in ("adapters", "polyloom")]
        table.add_row(result["backbone"], "yes" if result["invertible"] else "no", result["composition"], *errors)
    Console(width=110).print(table)
    raw = {
        "measure": "largest absolute difference of a mixed batch from adapters' own answer for each language alone",
        "versions": {"adapters": versions(str(python)), "polyloom": versions(sys.executable)},
        "results": results,
    }
    write_results(raw, file)


if __name__ == "__main__":
    app()
