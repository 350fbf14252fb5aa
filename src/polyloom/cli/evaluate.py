"""``polyloom evaluate``: the matrix of tasks and languages of a run."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyloom.cli.render.tables import Format

if TYPE_CHECKING:
    from polyloom.conditions import Condition
    from polyloom.evaluate.directions import Resources
    from polyloom.evaluate.matrix import Matrix
    from polyloom.workflows.runs import Run

Split = Literal["test", "validation"]


def evaluate(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    *,
    on: Annotated[Split, typer.Option(help="Which corpora of the recipe.")] = "test",
    tasks: Annotated[str | None, typer.Option(help="Only these, separated by commas: pos,ner.")] = None,
    languages: Annotated[str | None, typer.Option(help="Only these, separated by commas: yo,br.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file instead of stdout.")] = None,
    bootstrap: Annotated[bool, typer.Option("--bootstrap", help="Add 95 % confidence intervals.")] = False,
    baseline: Annotated[bool, typer.Option("--baseline", help="Add scores of the most frequent label.")] = False,
    signatures: Annotated[bool, typer.Option("--signatures", help="Say what was measured on what.")] = False,
    beams: Annotated[int, typer.Option(min=1, help="For mt: hypotheses that the search keeps.")] = 5,
    pivot: Annotated[str | None, typer.Option(help="For mt: a language to translate through.")] = None,
    levels: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="LOW HIGH", help="For mt: group by training pairs, below LOW, from HIGH on, between."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For mt: draw groups and directions, as PNG.")
    ] = None,
    comet: Annotated[
        str | None,
        typer.Option(metavar="CHECKPOINT", help="For mt: add COMET, by the Python that POLYLOOM_COMET_PYTHON names."),
    ] = None,
) -> None:
    """Score a run on the corpora of its recipe. What no labelled example was seen of in training is marked.

    All scores, with the counts of every sentence, are kept in RUN/evaluations, where polyloom compare finds them.

    Example: polyloom evaluate runs/first --languages yo,br --bootstrap

    Example: polyloom evaluate runs/mt --levels 1000 5000 --figures figures
    """
    from polyloom.backbones.decoding import Decoding  # noqa: PLC0415 - what follows imports torch
    from polyloom.cli.render.evaluate import Extras, render  # noqa: PLC0415
    from polyloom.evaluate.saved import store  # noqa: PLC0415
    from polyloom.workflows.runs import load_run  # noqa: PLC0415

    loaded = load_run(run)
    chosen = _chosen(loaded, on, tasks=_split(tasks), languages=_split(languages))
    _check_translation(chosen, {"levels": levels, "figures": figures, "comet": comet})
    resources = _resources(loaded, levels) if levels else None
    loaded.predictor.decoding = Decoding(beams=beams)
    with ExitStack() as stack:
        if comet:
            from polyloom.evaluate.comet import Comet  # noqa: PLC0415

            loaded.predictor.judge = stack.enter_context(Comet(comet)).judge
        matrix = loaded.evaluate(chosen, pivot=pivot, on_event=stack.enter_context(_progress()))
    extras = Extras(bootstrap, signatures, _baselines(loaded, chosen) if baseline else None, resources)
    text = render(matrix, form, extras)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
    stored = store(matrix, run, f"{on}-through-{pivot}" if pivot else on)
    typer.echo(f"Stored in {stored}", err=True)
    if figures:
        _draw(matrix, figures, resources)


def _split(names: str | None) -> list[str] | None:
    return [name.strip() for name in names.split(",")] if names else None


def _chosen(
    run: "Run", on: Split, *, tasks: Sequence[str] | None, languages: Sequence[str] | None
) -> dict[str, tuple[str, ...]]:
    """The corpora of a split that are of some tasks and languages."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.errors import ConfigError, suggest  # noqa: PLC0415

    corpora = getattr(run.recipe.data, on)
    if not corpora:
        raise ConfigError(str(run.path / "recipe.yaml"), [f"data.{on}: no corpora to score."])
    conditions = {name: Condition.parse(name) for name in corpora}
    known_tasks = list(dict.fromkeys(c.task for c in conditions.values()))
    known_languages = list(dict.fromkeys(language for c in conditions.values() for language in c.languages))
    for option, wanted, known in (("tasks", tasks, known_tasks), ("languages", languages, known_languages)):
        wrong = [name for name in wanted or () if name not in known]
        if wrong:
            mistakes = [f"{name!r} is not in data.{on} of this run. {suggest(name, known)}" for name in wrong]
            raise ConfigError(f"--{option}", mistakes)
    chosen = {
        name: corpora[name]
        for name, condition in conditions.items()
        if (not tasks or condition.task in tasks) and (not languages or set(condition.languages) & set(languages))
    }
    if not chosen:
        raise ConfigError("--tasks, --languages", [f"data.{on} has none of these tasks in these languages."])
    return chosen


def _check_translation(chosen: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """What is for translation needs some; and nobody should wait for scores to hear that they cannot be drawn."""
    from polyloom.errors import ConfigError, PolyloomError  # noqa: PLC0415

    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given and not any(name.startswith("mt/") for name in chosen):
        raise ConfigError(", ".join(given), ["for translation, but none is scored here."])
    if options["figures"] and find_spec("matplotlib") is None:
        raise PolyloomError("--figures: the package matplotlib is not installed. pip install 'polyloom[plots]'")


def _resources(run: "Run", levels: tuple[int, int]) -> "Resources":
    """The pairs that the recipe names for every direction, counted as they stand in their files."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.evaluate.directions import Resources  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    root = Path(run.recipe.data.root) if run.recipe.data.root else None
    pairs = {}
    for name, corpora in run.recipe.data.train.items():
        condition = Condition.parse(name)
        if (task := TASKS[condition.task]).generates:
            records = (task.records(resolve(corpus, root=root), condition) for corpus in corpora)
            pairs[condition] = sum(1 for some in records for _ in some)
    return Resources(pairs, *levels)


def _draw(matrix: "Matrix", folder: Path, resources: "Resources | None") -> None:
    from polyloom.evaluate.direction_figures import draw_grid, draw_groups  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for metric in dict.fromkeys(metric for task, metric in matrix.metrics() if TASKS[task].generates):
        groups, directions = (folder / f"{kind}-{metric}.png" for kind in ("groups", "directions"))
        draw_groups(matrix, groups, metric=metric, resources=resources)
        draw_grid(matrix, directions, metric=metric)
        typer.echo(f"Drawn: {groups}, {directions}", err=True)


def _baselines(run: "Run", chosen: Mapping[str, Sequence[str]]) -> "dict[Condition, float]":
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.tasks import TASKS  # noqa: PLC0415

    root = Path(run.recipe.data.root) if run.recipe.data.root else None
    found = {}
    for name, corpora in chosen.items():
        condition = Condition.parse(name)
        task = TASKS[condition.task]
        score = task.majority(
            record for corpus in corpora for record in task.records(resolve(corpus, root=root), condition)
        )
        if not math.isnan(score):
            found[condition] = score
    return found


@contextmanager
def _progress() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Say on stderr what is being scored: in one place on a terminal, line by line elsewhere."""
    from rich.console import Console  # noqa: PLC0415

    def line(event: Mapping[str, Any]) -> None:
        if event["event"] == "scored":
            scores = ", ".join(f"{name} {value:.2f}" for name, value in event["scores"].items())
            typer.echo(f"{event['condition']}: {scores}", err=True)

    if not sys.stderr.isatty():
        yield line
        return
    with Console(stderr=True, markup=False).status("") as status:
        yield lambda event: status.update(
            f"{event['done']:,} of {event['total']:,} translated"
            if event["event"] == "translated"
            else f"scoring {event['condition']}"
        )
