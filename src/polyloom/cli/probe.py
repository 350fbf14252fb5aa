"""``polyloom probe``: analyse the languages and weights of a run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polyloom.cli.evaluate import Split
from polyloom.cli.options import opens_runs
from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.conditions import Condition
    from polyloom.data.typology import Typology
    from polyloom.probe.swap import Score
    from polyloom.workflows.run import Run

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Analyse a run: languages, swapped weights, similarity of weights, capacity.",
)
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="Run to analyse.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the result as JSON.")]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a figure (PNG, SVG or PDF).")]
NameList = Annotated[str | None, typer.Option(help="Only these, separated by commas: yo,br.")]
Projection = Literal["pca", "umap"]
Progress = Callable[[str], None]


@app.command()
@opens_runs
def languages(
    run: Folder,
    *,
    typology: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Tables of families and features. Default: DATA/meta.")
    ] = None,
    projection: Annotated[Projection, typer.Option(help="Projection of the map. umap needs polyloom[umap].")] = "pca",
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Map the languages, draw their tree, and test agreement with families and typology.

    Example: polyloom probe languages runs/first --figure languages.png
    """
    from polyloom.cli.render.probe import show_languages  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.languages import draw_languages  # noqa: PLC0415
    from polyloom.probe.languages import language_vectors, probe_languages  # noqa: PLC0415
    from polyloom.probe.projection import require_projection  # noqa: PLC0415

    check_figure(figure)
    require_projection(projection)
    loaded = _load(run)
    result = probe_languages(language_vectors(loaded.model), _typology(loaded, typology), projection=projection)
    _hand_out("languages", loaded, result, text=show_languages(result), json_file=json_file)
    _draw(draw_languages, result, figure)


@app.command()
@opens_runs
def swap(  # noqa: PLR0913 - options of a command
    run: Folder,
    *,
    task: Annotated[str | None, typer.Option(help="Task, if the run has several.")] = None,
    on: Annotated[Split, typer.Option(help="Split of the recipe's corpora.")] = "test",
    languages: NameList = None,
    donors: Annotated[str | None, typer.Option(help="Further languages whose weights are tried: en,tr.")] = None,
    sentences: Annotated[int | None, typer.Option(min=1, help="Maximum number of sentences per language.")] = None,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Score every language with the weights of every other language. Text, head and language tokens stay its own.

    Of translation directions that all share a language, the other language's weights are swapped; else the target's.

    Example: polyloom probe swap runs/first --task pos --sentences 200
    """
    from polyloom.cli.render.probe import show_swap  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.matrices import draw_donors  # noqa: PLC0415
    from polyloom.probe.swap import donor_matrix, kept_language, own_language  # noqa: PLC0415

    check_figure(figure)
    loaded = _load(run)
    corpora = _chosen(loaded, on, task=task, languages=_split(languages))
    kept = kept_language(list(corpora))
    lenders = list(dict.fromkeys([*(own_language(c, kept) for c in corpora), *_known(loaded, donors)]))
    metric = loaded.model.task(next(iter(corpora)).task).metrics[0]
    with _progress() as say:
        result = donor_matrix(
            list(corpora),
            lenders,
            score=_scorer(loaded, corpora, sentences),
            on_score=lambda row, donor, score: say(
                f"{row} with weights of {donor}: {'–' if score is None else f'{score:.2f}'}"
            ),
        )
    result = {"task": next(iter(corpora)).task, "metric": metric.name, **result}
    text = show_swap(result, higher_is_better=metric.higher_is_better)
    _hand_out("swap", loaded, result, text=text, json_file=json_file)
    _draw(draw_donors, result, figure)


@app.command()
@opens_runs
def weights(
    run: Folder,
    *,
    tasks: Annotated[str | None, typer.Option(help="Only these, separated by commas: pos,ner.")] = None,
    languages: NameList = None,
    json_file: Json = None,
    figure: Figure = None,
) -> None:
    """Measure how similar the weights of conditions are, by layer.

    Example: polyloom probe weights runs/first --tasks pos,ner --figure weights.png
    """
    from polyloom.cli.render.probe import show_weights  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.matrices import draw_weights  # noqa: PLC0415
    from polyloom.probe.weights import probe_weights  # noqa: PLC0415

    check_figure(figure)
    loaded = _load(run)
    chosen = _conditions(loaded, _split(tasks), _split(languages))
    with _progress() as say:
        progress = lambda done, total: say(f"{done} of {total} blocks of conditions")  # noqa: E731
        result = probe_weights(loaded.model.method, chosen, progress=progress)
    _hand_out("weights", loaded, result, text=show_weights(result), json_file=json_file)
    _draw(draw_weights, result, figure)


@app.command()
@opens_runs
def capacity(run: Folder, *, json_file: Json = None, figure: Figure = None) -> None:
    """Measure how much of the hypernetwork's capacity is used.

    Example: polyloom probe capacity runs/first
    """
    from polyloom.cli.render.probe import show_capacity  # noqa: PLC0415 - what follows imports torch
    from polyloom.figures.curves import draw_capacity  # noqa: PLC0415
    from polyloom.probe.capacity import probe_capacity  # noqa: PLC0415

    check_figure(figure)
    loaded = _load(run)
    result = probe_capacity(loaded.model, _conditions(loaded, None, None))
    _hand_out("capacity", loaded, result, text=show_capacity(result), json_file=json_file)
    _draw(draw_capacity, result, figure)


def _load(run: Path) -> "Run":
    from polyloom.workflows.run import Run  # noqa: PLC0415

    return Run.load(run)


def _typology(run: "Run", folder: Path | None) -> "Typology | None":
    """Read the tables in the given folder, or by default those beside the corpora, if there are any."""
    from polyloom.data.typology import Typology, read_typology  # noqa: PLC0415

    typology = Typology.read(folder) if folder else read_typology(run.recipe.data.root)
    if typology is None:
        typer.echo("No families: beside the corpora is no folder meta. Name tables with --typology DIR.", err=True)
    return typology


def _chosen(
    run: "Run", on: Split, *, task: str | None, languages: Sequence[str] | None
) -> "dict[Condition, Sequence[str]]":
    """Select the corpora of one task."""
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.errors import ConfigError, suggest  # noqa: PLC0415

    scored = {Condition.parse(name): corpora for name, corpora in getattr(run.recipe.data, on).items()}
    tasks = list(dict.fromkeys(condition.task for condition in scored))
    if task is None and len(tasks) != 1:
        raise ConfigError("--task", [f"data.{on} of this run has {', '.join(tasks) or 'no corpora'}. Name one."])
    if task is not None and task not in tasks:
        raise ConfigError("--task", [f"{task!r} is not in data.{on} of this run. {suggest(task, tasks)}"])
    chosen = {c: corpora for c, corpora in scored.items() if c.task == (task or tasks[0])}
    known = list(dict.fromkeys(language for c in chosen for language in c.languages))
    wrong = [name for name in languages or () if name not in known]
    if wrong:
        raise ConfigError("--languages", [f"{n!r} is not scored on data.{on}. {suggest(n, known)}" for n in wrong])
    return {c: corpora for c, corpora in chosen.items() if not languages or set(c.languages) & set(languages)}


def _known(run: "Run", donors: str | None) -> list[str]:
    for name in _split(donors) or ():
        run.model.method.languages.row(name)  # raises an error that lists the known names
    return _split(donors) or []


def _conditions(run: "Run", tasks: Sequence[str] | None, languages: Sequence[str] | None) -> "list[Condition]":
    """Select the supported conditions of some tasks and languages."""
    from polyloom.model import supported_conditions  # noqa: PLC0415

    method = run.model.method
    for names, wanted in ((method.tasks, tasks), (method.languages, languages)):
        for name in wanted or ():
            names.row(name)  # raises an error that lists the known names
    return [
        condition
        for condition in supported_conditions(method)
        if (not tasks or condition.task in tasks) and (not languages or set(condition.languages) & set(languages))
    ]


def _scorer(run: "Run", corpora: "Mapping[Condition, Sequence[str]]", sentences: int | None) -> "Score":
    """Return a function that scores a condition with the weights of another one."""
    from itertools import islice  # noqa: PLC0415

    from polyloom.metrics.score import Score  # noqa: PLC0415
    from polyloom.probe.swap import DonatedCache  # noqa: PLC0415

    model, predictor = run.model, run.predictor
    cache = DonatedCache(model)
    predictor.cache = cache
    records: dict[Condition, list[Any]] = {}

    def score(condition: "Condition", used: "Condition") -> float | None:
        task = model.task(condition.task)
        if not (model.method.supports(used) and model.method.supports(condition)):
            return None
        if condition not in records:
            all_records = (r for corpus in run.resolve(corpora[condition]) for r in task.records(corpus, condition))
            records[condition] = list(islice(all_records, sentences))
        sample = records[condition]
        if task.generates:
            cache.donated = {condition: used}
            predictions: list[Any] = predictor.translate([(condition, record) for record in sample])
        else:  # the condition only selects the weights
            predictions = list(predictor.predict(sample, used))
        metric, statistics_NP = next(iter(task.measure(sample, predictions, condition.languages[-1]).items()))
        return Score(metric, statistics_NP, "").value

    return score


def _hand_out(kind: str, run: "Run", result: Mapping[str, Any], *, text: str, json_file: Path | None) -> None:
    """Print a result and store it with the run."""
    from polyloom.rundir import RunDir  # noqa: PLC0415 - imports torch

    whole = {"kind": kind, "checkpoint": run.checkpoint.name, **_rounded(result)}
    content = to_json(whole) + "\n"
    typer.echo(text, nl=False)
    directory = RunDir(run.path)
    path = directory.write(directory.probe(kind), content)
    typer.echo(f"Stored in {path}", err=True)
    if json_file:
        json_file.write_text(content, encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def check_figure(path: Path | None) -> None:
    """Check that a figure can be written before anything is computed."""
    if path is None:
        return
    from polyloom.errors import PolyloomError  # noqa: PLC0415
    from polyloom.figures.canvas import FORMATS, require_matplotlib  # noqa: PLC0415

    require_matplotlib("--figure")
    if path.suffix not in FORMATS:
        raise PolyloomError(f"--figure {path}: unknown format. Known: {', '.join(FORMATS)}.")


def _draw(draw: Callable[[Mapping[str, Any], Path], None], result: Mapping[str, Any], path: Path | None) -> None:
    if path:
        draw(result, path)
        typer.echo(f"Drawn: {path}", err=True)


def _split(names: str | None) -> list[str] | None:
    return [name.strip() for name in names.split(",")] if names else None


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show progress on stderr: in place on a terminal, line by line elsewhere."""
    from rich.console import Console  # noqa: PLC0415

    if not sys.stderr.isatty():
        yield lambda line: typer.echo(line, err=True)
        return
    with Console(stderr=True, markup=False).status("") as status:
        yield status.update
