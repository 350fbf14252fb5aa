"""``polyloom evaluate``: score a run on all its tasks and languages."""

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyloom.cli.options import Checkpoint, Split, check_figure, split_names
from polyloom.cli.predict import echo_length_warnings
from polyloom.cli.render.tables import Format

if TYPE_CHECKING:
    from polyloom.training.events import OnEvent


def evaluate(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Run to score.")],
    *,
    split: Annotated[Split, typer.Option(help="Split of the recipe's corpora.")] = "test",
    tasks: Annotated[str | None, typer.Option(help="Only these, separated by commas: pos,ner.")] = None,
    languages: Annotated[str | None, typer.Option(help="Only these, separated by commas: yo,br.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Output format.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file instead of stdout.")] = None,
    bootstrap: Annotated[bool, typer.Option("--bootstrap", help="Add 95 % confidence intervals.")] = False,
    baseline: Annotated[bool, typer.Option("--baseline", help="Add the score of the majority baseline.")] = False,
    signatures: Annotated[bool, typer.Option("--signatures", help="Add the signature of each score.")] = False,
    beams: Annotated[int, typer.Option(min=1, max=100, help="Translation: number of beams.")] = 5,
    pivot: Annotated[str | None, typer.Option(help="Translation: language to translate through.")] = None,
    levels: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="LOW HIGH", help="Translation: group directions by training pairs (low, medium, high)."),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Translation: draw the scores (PNG, SVG or PDF), two files per metric."),
    ] = None,
    comet: Annotated[
        str | None,
        typer.Option(metavar="CHECKPOINT", help="Translation: add COMET (needs POLYLOOM_COMET_PYTHON)."),
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Score a run on the corpora of its recipe. Zero-shot scores are marked.

    The scores are stored in RUN/evaluations with the statistics of every sentence, for polyloom compare.

    Example: polyloom evaluate runs/first --languages yo,br --bootstrap

    Example: polyloom evaluate runs/mt --levels 1000 5000 --figure scores.png
    """
    from polyloom.backbones.decoding import Decoding  # noqa: PLC0415 - what follows imports torch
    from polyloom.cli.render.evaluate import Extras, render  # noqa: PLC0415
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.errors import ConfigError  # noqa: PLC0415
    from polyloom.evaluate.directions import Resources  # noqa: PLC0415
    from polyloom.evaluate.saved import store  # noqa: PLC0415
    from polyloom.figures.bars import draw_groups  # noqa: PLC0415
    from polyloom.figures.matrices import draw_directions  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    loaded = Run.load(run, checkpoint=checkpoint)
    corpora = loaded.corpora(split, tasks=split_names(tasks), languages=split_names(languages))

    # Scoring takes minutes to hours, so missing corpora and useless options are reported first.
    resolved = {Condition.parse(name): loaded.resolve(names) for name, names in corpora.items()}
    of_translation = {"--levels": levels, "--figure": figure, "--comet": comet}
    options = [option for option, value in of_translation.items() if value is not None]
    if options and not any(TASKS[condition.task].generates for condition in resolved):
        raise ConfigError(", ".join(options), ["for translation, but none is scored here."])
    check_figure(figure)
    resources, baselines = None, None
    if levels:
        pairs = {}
        for name, names in loaded.recipe.data.train.items():
            condition = Condition.parse(name)
            task = TASKS[condition.task]
            if task.generates:
                pairs[condition] = sum(1 for corpus in loaded.resolve(names) for _ in task.records(corpus, condition))
        resources = Resources(pairs, *levels)
    if baseline:
        baselines = {}
        for condition, files in resolved.items():
            task = TASKS[condition.task]
            majority = task.majority(record for corpus in files for record in task.records(corpus, condition))
            if not math.isnan(majority):  # not every task has such a baseline
                baselines[condition] = majority

    loaded.predictor.decoding = Decoding(beams=beams)
    with ExitStack() as stack:
        if comet:
            from polyloom.evaluate.comet import Comet  # noqa: PLC0415

            loaded.predictor.extra_metrics = stack.enter_context(Comet(comet)).measure
        matrix = loaded.evaluate(corpora, pivot=pivot, on_event=stack.enter_context(_progress()))

    text = render(matrix, form, Extras(bootstrap, signatures, baselines, resources))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    echo_length_warnings(loaded.predictor)
    typer.echo(f"Stored in {store(matrix, run, split, pivot=pivot)}", err=True)
    if figure:
        for metric in dict.fromkeys(metric for task, metric in matrix.metrics() if TASKS[task].generates):
            groups, directions = (
                figure.with_stem(f"{figure.stem}-{kind}-{metric}") for kind in ("groups", "directions")
            )
            draw_groups(matrix, groups, metric=metric, resources=resources)
            draw_directions(matrix, directions, metric=metric)
            typer.echo(f"Drawn: {groups}, {directions}", err=True)


@contextmanager
def _progress() -> Iterator["OnEvent"]:
    """Show on stderr what is being scored: as a status line in a terminal, else line by line."""
    from rich.console import Console  # noqa: PLC0415

    from polyloom.training.events import Event, Scored, ScoringStarted, Translated  # noqa: PLC0415

    def print_scores(event: Event) -> None:
        if isinstance(event, Scored):
            scores = ", ".join(f"{name} {value:.2f}" for name, value in event.scores.items())
            typer.echo(f"{event.condition}: {scores}", err=True)

    if not sys.stderr.isatty():
        yield print_scores
        return
    with Console(stderr=True, markup=False).status("") as status:

        def update_status(event: Event) -> None:
            if isinstance(event, Translated):
                status.update(f"{event.done:,} of {event.total:,} translated")
            elif isinstance(event, ScoringStarted):
                status.update(f"scoring {event.condition}")

        yield update_status
