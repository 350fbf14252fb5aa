"""``polyloom transfer``: tabulate the scores of several runs by source and target language."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyloom.cli.options import Figure, Split, check_figure
from polyloom.cli.render.tables import Format, aligned, markdown, tabs
from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.evaluate.transfer import Transfer


def transfer(
    runs: Annotated[list[Path], typer.Argument(help="Runs of one method that were evaluated, one per source.")],
    *,
    task: Annotated[str | None, typer.Option(help="Task, if the runs have several.")] = None,
    metric: Annotated[str | None, typer.Option(help="Metric. Default: the one that selects checkpoints.")] = None,
    split: Annotated[Split, typer.Option(help="Split whose scores are shown.")] = "test",
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    figure: Figure = None,
) -> None:
    """Show the scores of several runs: a row for each source language, a column for each target.

    The source of a run is the language of its labelled data; of a pair of languages (BAD-X) it is the first one.

    Example: polyloom transfer runs/from-en runs/from-tr runs/from-yo --task ner --figure transfer.png
    """
    from polyloom.figures.matrices import draw_transfer  # noqa: PLC0415
    from polyloom.workflows.compare import transfer as transfer_runs  # noqa: PLC0415 - imports torch

    check_figure(figure)
    result = transfer_runs(runs, task=task, metric=metric, split=split)
    typer.echo(_render(result, form), nl=False)
    if figure:
        draw_transfer(result, figure)
        typer.echo(f"Drawn: {figure}", err=True)


def _render(result: "Transfer", form: Format) -> str:
    cells = [
        {"source": source, "target": target, "value": value, "zero_shot": (source, target) in result.zero_shot}
        for source, values in zip(result.sources, result.scores.tolist(), strict=True)
        for target, value in zip(result.targets, values, strict=True)
        if value == value  # noqa: PLR0124 - not NaN
    ]
    if form == "json":
        return to_json({"task": result.task, "metric": result.metric, "scores": cells}, indent=2) + "\n"
    if form == "tsv":
        return tabs(list(cells[0]), [[str(value) for value in cell.values()] for cell in cells])
    columns, rows = result.table()
    columns[0] = f"{result.task} {result.metric}: {columns[0]}"
    note = "⁰ zero-shot: no labelled example of this task in the target language in training. Means are of these only."
    return (markdown if form == "markdown" else aligned)(columns, rows) + f"\n{note}\n"
