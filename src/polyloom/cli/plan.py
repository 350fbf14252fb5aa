"""``polyloom plan``: the cost of a recipe before training."""

from pathlib import Path
from typing import Annotated

import typer

from polyloom.io.plain_json import to_json


def show_plan(  # noqa: PLR0913 - options of a command
    recipe: Annotated[Path, typer.Argument(help="Recipe: a YAML file or the name of a shipped one.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
    *,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Table of translation corpora, to plan the run: languages (en/de), pairs, mean length."),
    ] = None,
    tflops: Annotated[
        float | None, typer.Option(min=1e-6, help="Sustained TFLOP/s of the device, to estimate hours.")
    ] = None,
    speed_of: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run of the same model, whose speed is used instead.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Number of devices, to estimate the memory of each in training.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the cost of a recipe's method next to every other method, before training.

    Parameters, bytes per adapter, FLOPs per token and growth with the number of languages, for the same backbone,
    languages and tasks. Loads no weights, and needs no network if the recipe has a backbone.config.

    --pairs also plans a translation run: epochs per direction, tokens, hours, disk and memory.

    --devices also estimates the memory of a device at the peak of a training step, with the backbone copied (ddp) or
    sharded (fsdp), with and without gradient checkpointing.

    Example: polyloom plan hyper-adapters/ml50-base method.hidden_size=204
    """
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
    from polyloom.recipes import find_file  # noqa: PLC0415
    from polyloom.workflows.planning import (  # noqa: PLC0415 - imports transformers
        plan,
        plan_memory,
        plan_run,
        read_sizes,
        tokens_per_second,
    )

    if pairs is None and (tflops or speed_of):
        raise typer.BadParameter("hours are those of a run: --pairs is missing.")
    settings = load_recipe(recipe, overrides or ())
    costs, run = plan(settings), None
    if pairs is not None:
        run = plan_run(
            settings,
            costs,
            sizes=read_sizes(find_file(pairs)),
            flops_per_second=tflops and tflops * 1e12,
            tokens_per_second=tokens_per_second(speed_of, settings) if speed_of else None,
        )
    memory = plan_memory(settings, devices=devices) if devices else []
    if as_json:
        result = costs.to_dict() | ({"run": run.to_dict()} if run else {})
        result |= {"memory": [setting.to_dict() for setting in memory]} if memory else {}
        typer.echo(to_json(result, indent=2))
        return

    from rich.console import Console  # noqa: PLC0415 - only where it prints

    from polyloom.cli.render.plan import render, render_memory, render_run  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    render(costs, console)
    if run is not None:
        render_run(run, console)
    if memory:
        render_memory(memory, console)
