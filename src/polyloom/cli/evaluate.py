"""``polyloom evaluate``: score a run on all its tasks and languages."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyloom.cli.options import Checkpoint
from polyloom.cli.predict import say_long
from polyloom.cli.render.tables import Format

if TYPE_CHECKING:
    from polyloom.conditions import Condition
    from polyloom.evaluate.directions import Resources
    from polyloom.evaluate.matrix import Matrix
    from polyloom.training.events import OnEvent
    from polyloom.workflows.run import Run

Split = Literal["test", "validation"]


def evaluate(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Run to score.")],
    *,
    on: Annotated[Split, typer.Option(help="Split of the recipe's corpora.")] = "test",
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
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Translation: draw the scores as PNG files.")
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

    Example: polyloom evaluate runs/mt --levels 1000 5000 --figures figures
    """
    from polyloom.backbones.decoding import Decoding  # noqa: PLC0415 - what follows imports torch
    from polyloom.cli.render.evaluate import Extras, render  # noqa: PLC0415
    from polyloom.evaluate.saved import store  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    loaded = Run.load(run, checkpoint=checkpoint)
    chosen = loaded.corpora(on, tasks=_split(tasks), languages=_split(languages))
    for names in chosen.values():
        loaded.resolve(names)  # all may be read
    _check_translation(chosen, {"levels": levels, "figures": figures, "comet": comet})
    resources = _resources(loaded, levels) if levels else None
    loaded.predictor.decoding = Decoding(beams=beams)
    with ExitStack() as stack:
        if comet:
            from polyloom.evaluate.comet import Comet  # noqa: PLC0415

            loaded.predictor.judge = stack.enter_context(Comet(comet)).judge
        matrix = loaded.evaluate(chosen, pivot=pivot, on_event=stack.enter_context(_progress()))
    extras = Extras(bootstrap, signatures, _baselines(loaded, chosen) if baseline else None, resources)
    _write(render(matrix, form, extras), output)
    say_long(loaded.predictor)
    stored = store(matrix, run, on, pivot=pivot)
    typer.echo(f"Stored in {stored}", err=True)
    if figures:
        _draw(matrix, figures, resources)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _split(names: str | None) -> list[str] | None:
    return [name.strip() for name in names.split(",")] if names else None


def _check_translation(chosen: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check options of translation before anything is scored."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.errors import ConfigError  # noqa: PLC0415
    from polyloom.figures.canvas import require_matplotlib  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given and not any(TASKS[Condition.parse(name).task].generates for name in chosen):
        raise ConfigError(", ".join(given), ["for translation, but none is scored here."])
    if options["figures"]:
        require_matplotlib("--figures")


def _resources(run: "Run", levels: tuple[int, int]) -> "Resources":
    """Count the training pairs of every direction."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.evaluate.directions import Resources  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    pairs = {}
    for name, corpora in run.recipe.data.train.items():
        condition = Condition.parse(name)
        if (task := TASKS[condition.task]).generates:
            records = (task.records(corpus, condition) for corpus in run.resolve(corpora))
            pairs[condition] = sum(1 for corpus in records for _ in corpus)
    return Resources(pairs, *levels)


def _draw(matrix: "Matrix", folder: Path, resources: "Resources | None") -> None:
    from polyloom.figures.bars import draw_groups  # noqa: PLC0415
    from polyloom.figures.matrices import draw_directions  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for metric in dict.fromkeys(metric for task, metric in matrix.metrics() if TASKS[task].generates):
        groups, directions = (folder / f"{kind}-{metric}.png" for kind in ("groups", "directions"))
        draw_groups(matrix, groups, metric=metric, resources=resources)
        draw_directions(matrix, directions, metric=metric)
        typer.echo(f"Drawn: {groups}, {directions}", err=True)


def _baselines(run: "Run", chosen: Mapping[str, Sequence[str]]) -> "dict[Condition, float]":
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    scores = {}
    for name, corpora in chosen.items():
        condition = Condition.parse(name)
        task = TASKS[condition.task]
        score = task.majority(record for corpus in run.resolve(corpora) for record in task.records(corpus, condition))
        if not math.isnan(score):
            scores[condition] = score
    return scores


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
