"""``polyloom probe``: analyse the languages and weights of a run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyloom.cli.options import Figure, Split, check_figure, opens_runs, split_names
from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.conditions import Condition
    from polyloom.workflows.run import Run

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Analyse a run: languages, swapped weights, similarity of weights, capacity.",
)
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="Run to analyse.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
NameList = Annotated[str | None, typer.Option(help="Only these, separated by commas: yo,br.")]
Projection = Literal["pca", "umap"]


@app.command()
@opens_runs
def languages(
    run: Folder,
    *,
    typology: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Tables of families and features. Default: DATA/meta.")
    ] = None,
    projection: Annotated[Projection, typer.Option(help="Projection of the map. umap needs polyloom[umap].")] = "pca",
    as_json: AsJson = False,
    figure: Figure = None,
) -> None:
    """Map the languages, draw their tree, and test agreement with families and typology.

    Example: polyloom probe languages runs/first --figure languages.png
    """
    from polyloom.cli.render.probe import show_languages  # noqa: PLC0415 - what follows imports torch
    from polyloom.data.typology import Typology, read_typology  # noqa: PLC0415
    from polyloom.figures.languages import draw_languages  # noqa: PLC0415
    from polyloom.probe.languages import language_vectors, probe_languages  # noqa: PLC0415
    from polyloom.probe.projection import require_projection  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    check_figure(figure)
    require_projection(projection)
    loaded = Run.load(run)
    tables = Typology.read(typology) if typology else read_typology(loaded.recipe.data.root)
    if tables is None:
        typer.echo("No families: the data root has no folder meta. Name tables with --typology DIR.", err=True)
    result = probe_languages(language_vectors(loaded.model), tables, projection=projection)
    _finish("languages", loaded, result, show_languages(result), as_json=as_json, draw=draw_languages, figure=figure)


@app.command()
@opens_runs
def swap(  # noqa: PLR0913 - options of a command
    run: Folder,
    *,
    task: Annotated[str | None, typer.Option(help="Task, if the run has several.")] = None,
    split: Annotated[Split, typer.Option(help="Split of the recipe's corpora.")] = "test",
    languages: NameList = None,
    donors: Annotated[str | None, typer.Option(help="Further languages whose weights are tried: en,tr.")] = None,
    max_sentences: Annotated[int | None, typer.Option(min=1, help="Maximum number of sentences per language.")] = None,
    as_json: AsJson = False,
    figure: Figure = None,
) -> None:
    """Score every language with the weights of every other language. Text, head and language tokens stay its own.

    Of translation directions that all share a language, the other language's weights are swapped; else the target's.

    Example: polyloom probe swap runs/first --task pos --max-sentences 200
    """
    from polyloom.cli.render.probe import show_swap  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.matrices import draw_donors  # noqa: PLC0415
    from polyloom.probe.swap import donor_matrix, donor_scorer, kept_language, own_language  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    check_figure(figure)
    loaded = Run.load(run)
    corpora = _corpora_of_task(loaded, split, task=task, languages=split_names(languages) or ())
    conditions, kept = list(corpora), kept_language(list(corpora))
    further = split_names(donors) or []
    for name in further:
        loaded.model.method.languages.row(name)  # raises an error that lists the known names
    all_donors = list(dict.fromkeys([*(own_language(c, kept) for c in conditions), *further]))

    head = loaded.model.task(conditions[0].task)
    records = {
        condition: list(islice((r for c in loaded.resolve(names) for r in head.records(c, condition)), max_sentences))
        for condition, names in corpora.items()
    }
    with _progress() as show:

        def on_score(row: str, donor: str, value: float | None) -> None:
            show(f"{row} with weights of {donor}: {'–' if value is None else f'{value:.2f}'}")

        scores = donor_matrix(conditions, all_donors, score=donor_scorer(loaded.predictor, records), on_score=on_score)
    metric = head.chosen_metrics()[0]
    result = {"task": head.name, "metric": metric.name, **scores}
    text = show_swap(result, higher_is_better=metric.higher_is_better)
    _finish("swap", loaded, result, text, as_json=as_json, draw=draw_donors, figure=figure)


def _corpora_of_task(
    run: "Run", split: Split, *, task: str | None, languages: Sequence[str]
) -> "dict[Condition, Sequence[str]]":
    """Select the corpora of one task by condition; without a name, of the only task of the split."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.errors import ConfigError, suggest  # noqa: PLC0415

    of_split = {Condition.parse(name): names for name, names in getattr(run.recipe.data, split).items()}
    tasks = list(dict.fromkeys(condition.task for condition in of_split))
    if task is None and len(tasks) != 1:
        raise ConfigError("--task", [f"data.{split} of this run has {', '.join(tasks) or 'no corpora'}. Name one."])
    if task is not None and task not in tasks:
        raise ConfigError("--task", [f"{task!r} is not in data.{split} of this run. {suggest(task, tasks)}"])
    corpora = {c: names for c, names in of_split.items() if c.task == (task or tasks[0])}
    known = list(dict.fromkeys(language for c in corpora for language in c.languages))
    if unknown := [name for name in languages if name not in known]:
        raise ConfigError("--languages", [f"{n!r} is not scored on data.{split}. {suggest(n, known)}" for n in unknown])
    return {c: names for c, names in corpora.items() if not languages or set(c.languages) & set(languages)}


@app.command()
@opens_runs
def weights(
    run: Folder,
    *,
    tasks: Annotated[str | None, typer.Option(help="Only these, separated by commas: pos,ner.")] = None,
    languages: NameList = None,
    as_json: AsJson = False,
    figure: Figure = None,
) -> None:
    """Measure how similar the weights of conditions are, by layer.

    Example: polyloom probe weights runs/first --tasks pos,ner --figure weights.png
    """
    from polyloom.cli.render.probe import show_weights  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.matrices import draw_weights  # noqa: PLC0415
    from polyloom.model import supported_conditions  # noqa: PLC0415
    from polyloom.probe.weights import probe_weights  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    check_figure(figure)
    loaded = Run.load(run)
    method, only_tasks, only_languages = loaded.model.method, split_names(tasks), split_names(languages)
    for index, names in ((method.tasks, only_tasks), (method.languages, only_languages)):
        for name in names or ():
            index.row(name)  # raises an error that lists the known names
    conditions = [
        condition
        for condition in supported_conditions(method)
        if (not only_tasks or condition.task in only_tasks)
        and (not only_languages or set(condition.languages) & set(only_languages))
    ]
    with _progress() as show:
        progress = lambda done, total: show(f"{done} of {total} pairs of chunks of conditions")  # noqa: E731
        result = probe_weights(method, conditions, progress=progress)
    _finish("weights", loaded, result, show_weights(result), as_json=as_json, draw=draw_weights, figure=figure)


@app.command()
@opens_runs
def capacity(run: Folder, *, as_json: AsJson = False, figure: Figure = None) -> None:
    """Measure how much of the hypernetwork's capacity is used.

    Example: polyloom probe capacity runs/first
    """
    from polyloom.cli.render.probe import show_capacity  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.curves import draw_capacity  # noqa: PLC0415
    from polyloom.model import supported_conditions  # noqa: PLC0415
    from polyloom.probe.capacity import probe_capacity  # noqa: PLC0415
    from polyloom.workflows.run import Run  # noqa: PLC0415

    check_figure(figure)
    loaded = Run.load(run)
    result = probe_capacity(loaded.model, supported_conditions(loaded.model.method))
    _finish("capacity", loaded, result, show_capacity(result), as_json=as_json, draw=draw_capacity, figure=figure)


def _finish(  # noqa: PLR0913 - options of a command
    kind: str,
    run: "Run",
    result: Mapping[str, Any],
    text: str,
    *,
    as_json: bool,
    draw: Callable[[Mapping[str, Any], Path], None],
    figure: Path | None,
) -> None:
    """Print a result, store it with the run, and draw it."""
    from polyloom.rundir import RunDir  # noqa: PLC0415 - imports torch

    content = to_json({"kind": kind, "checkpoint": run.checkpoint.name, **_rounded(result)}) + "\n"
    typer.echo(content if as_json else text, nl=False)
    directory = RunDir(run.path)
    typer.echo(f"Stored in {directory.write(directory.probe(kind), content)}", err=True)
    if figure:
        draw(result, figure)
        typer.echo(f"Drawn: {figure}", err=True)


def _rounded(value: Any) -> Any:
    """Round all numbers of a result: more digits than these differ between machines."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show progress on stderr: in place on a terminal, line by line elsewhere."""
    from rich.console import Console  # noqa: PLC0415

    if not sys.stderr.isatty():
        yield lambda line: typer.echo(line, err=True)
        return
    with Console(stderr=True, markup=False).status("") as status:
        yield status.update
