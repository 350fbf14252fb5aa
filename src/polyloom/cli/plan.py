"""``polyloom plan``: what a recipe costs, before anything is spent."""

import json
from pathlib import Path
from typing import Annotated

import typer


def show_plan(
    recipe: Annotated[Path, typer.Argument(help="A YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
    *,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Plan the run too: a table of languages (en/de), pairs and mean length, with tabs."),
    ] = None,
    tflops: Annotated[float | None, typer.Option(min=1e-6, help="What the device really does, for the hours.")] = None,
    like: Annotated[Path | None, typer.Option(help="Or a run of the same model that was as fast.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """See what a recipe costs against every alternative, before anything is spent.

    Parameters, bytes per adapter, operations per token, and growth with the number of languages, for the same
    backbone, languages and tasks. Needs no weights, and no network where the recipe has a backbone.config.

    With --pairs, also what a run of translation takes: epochs of every direction, tokens, hours, disk, memory.

    Example: polyloom plan recipes/hyper-adapters/ml50-base.yaml method.hidden_size=204
    """
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
    from polyloom.workflows.planning import plan, plan_run, read_sizes, tokens_per_second  # noqa: PLC0415 - imports transformers

    if pairs is None and (tflops or like):
        raise typer.BadParameter("hours are those of a run: --pairs is missing.")
    settings = load_recipe(recipe, overrides or ())
    made, run = plan(settings), None
    if pairs is not None:
        run = plan_run(
            settings,
            made,
            sizes=read_sizes(pairs),
            flops_per_second=tflops and tflops * 1e12,
            tokens_per_second=tokens_per_second(like, settings) if like else None,
        )
    if as_json:
        found = made.to_dict() | ({"run": run.to_dict()} if run else {})
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    from rich.console import Console  # noqa: PLC0415

    from polyloom.cli.render.plan import render  # noqa: PLC0415
    from polyloom.cli.render.plan_run import render_run  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    render(made, console)
    if run is not None:
        render_run(run, console)
