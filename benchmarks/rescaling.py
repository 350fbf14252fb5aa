"""Does rescaling by 1/√d_h matter? A toy translation from scratch, with hypernetworks of growing width.

Every language writes the same words in its own permutation of the alphabet, and a small pre-norm encoder must
transcribe from one into another: a model that ignores the languages cannot learn. It is trained jointly with
Hyper-Adapters of width d_h, with and without rescaling; recorded are the final loss and the size of the activations
that leave the last layer.

    python -m benchmarks.rescaling --json benchmarks/results/rescaling.json --figure docs/figures/rescaling.png
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import polyloom as pl
from benchmarks.measure import Json, Tiny, command, make_app, use_one_thread, write_results

app = make_app()
WIDTHS = (16, 64, 256, 1024)
LANGUAGES = tuple(f"l{i}" for i in range(16))
LETTERS, LENGTH, ROWS = 48, 8, 48


def build(hidden_size: int, *, rescale: bool, seed: int) -> pl.Model:
    """Return a fresh small encoder with hyper-adapters in all layers."""
    torch.manual_seed(seed)
    backbone = pl.backbone_from_config(
        {
            "model_type": "modernbert",
            "vocab_size": LETTERS,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
        }
    )
    method = pl.HyperAdaptersConfig(adapter_size=32, hidden_size=hidden_size, rescale=rescale, init="default")
    return pl.Model(backbone, method, languages=LANGUAGES, tasks=["mt"])


def batch(alphabets: Tensor, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """Draw words, written in a source and a target alphabet; no language token names them."""
    words = torch.randint(LETTERS, (ROWS, LENGTH), generator=generator)
    pairs = torch.randint(len(LANGUAGES), (ROWS, 2), generator=generator)
    source, target = (alphabets[pairs[:, side : side + 1], words] for side in (0, 1))
    rows = [f"mt/{LANGUAGES[one]}/{LANGUAGES[other]}" for one, other in pairs.tolist()]
    return {"input_ids": source}, target, rows


def train(hidden_size: int, *, rescale: bool, seed: int, steps: int, lr: float) -> dict[str, Any]:
    """Train one model; return its losses and activations."""
    model = build(hidden_size, rescale=rescale, seed=seed).train()
    generator = torch.Generator().manual_seed(seed)
    alphabets = torch.stack([torch.randperm(LETTERS, generator=generator) for _ in LANGUAGES])
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), eps=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 40, (40 / (step + 1)) ** 0.5))
    losses, sizes = [], []
    for _ in range(steps):
        inputs, target, rows = batch(alphabets, generator)
        output = model(inputs | {"output_hidden_states": True}, rows)
        loss = F.cross_entropy(output.logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        sizes.append(output.hidden_states[-2].square().mean().sqrt().item())
    return {
        "hidden_size": hidden_size,
        "rescale": rescale,
        "seed": seed,
        "activation_at_start": sizes[0],
        "largest_activation": max(sizes),
        "final_loss": sum(losses[-20:]) / 20,
        "losses": [round(loss, 4) for loss in losses[::10]],
    }


@command(app, __doc__)
def main(  # noqa: PLR0913 - options of a command
    *,
    steps: Annotated[int, typer.Option(help="Steps of each training.")] = 300,
    seeds: Annotated[int, typer.Option(help="Trainings of each width.")] = 2,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 2e-3,
    widths: Annotated[list[int] | None, typer.Option("--width", help="Default: 16, 64, 256 and 1024.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the results here.")] = None,
    tiny: Tiny = False,
    file: Json = None,
) -> None:
    """Train all widths, with and without rescaling."""
    use_one_thread()
    if tiny:
        steps, seeds, widths = 20, 1, [16]
    started = time.perf_counter()
    results = []
    for hidden_size in widths or WIDTHS:
        for rescale in (True, False):
            for seed in range(seeds):
                results.append(train(hidden_size, rescale=rescale, seed=seed, steps=steps, lr=lr))
                print(
                    f"d_h {hidden_size:5d}  rescale {rescale!s:5}  seed {seed}  activation at start "
                    f"{results[-1]['activation_at_start']:8.2f}  largest {results[-1]['largest_activation']:9.2f}  "
                    f"final loss {results[-1]['final_loss']:.3f}",
                    flush=True,
                )
    settings = {"steps": steps, "lr": lr, "seconds": round(time.perf_counter() - started, 1)}
    write_results({"settings": settings, "results": results}, file)
    if figure:
        draw(results, figure)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw two panels over d_h: activations and final loss, with the seeds as dots and their mean as a line."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - only for drawing

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for panel, key, title in zip(
        panels,
        ("largest_activation", "final_loss"),
        ("Largest activation (RMS) during training", "Final training loss"),
        strict=True,
    ):
        for rescale, color, marker in ((True, "#0072B2", "o"), (False, "#D55E00", "s")):
            points = [(r["hidden_size"], r[key]) for r in results if r["rescale"] == rescale]
            widths = sorted({width for width, _ in points})
            means = [sum(v for w, v in points if w == width) / sum(w == width for w, _ in points) for width in widths]
            panel.plot(widths, means, color=color, marker=marker, label="with 1/√d_h" if rescale else "without")
            panel.scatter(*zip(*points, strict=True), color=color, marker=marker, s=14, alpha=0.5)
        panel.set(xscale="log", xlabel="hypernetwork width d_h", title=title)
        panel.set_xticks(widths, [str(width) for width in widths], minor=False)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yscale("log")
    panels[1].set_ylim(bottom=0)
    panels[1].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    app()
