"""``polyloom data``: list, check, fetch, vocab, prepare."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyloom.cli.data_vocab import vocab
from polyloom.cli.options import extensible
from polyloom.io.plain_json import to_json

if TYPE_CHECKING:
    from polyloom.data.corpus_stats import CorpusRole

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, check, download and prepare corpora; train vocabularies."
)
app.command()(vocab)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Root = Annotated[
    Path | None, typer.Option("--root", help="Data root. Default: POLYLOOM_DATA, else ~/.cache/polyloom/data.")
]


@app.command(name="list")
@extensible
def show_list(
    collection: Annotated[str | None, typer.Argument(help="Collection, such as ud or wikiann.")] = None,
    *,
    language: Annotated[str | None, typer.Option(help="Language codes, separated by commas: yo,yor.")] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """List the corpora under the data root and those that can be downloaded.

    Example: polyloom data list ud --language tr
    """
    from polyloom.cli.render import data as data_view  # noqa: PLC0415
    from polyloom.data.catalog import COLLECTIONS, data_root  # noqa: PLC0415
    from polyloom.errors import DataError, suggest  # noqa: PLC0415

    if collection is not None and collection not in COLLECTIONS:
        raise DataError(collection, None, f"unknown collection. {suggest(collection, COLLECTIONS, limit=20)}")
    rows = data_view.listed(data_root(root), collection=collection, languages=language.split(",") if language else None)
    if as_json:
        typer.echo(to_json(rows, indent=2))
        return
    typer.echo(f"Data root: {data_root(root)}", err=True)
    if collection is None and language is None:
        data_view.show_collections(rows)
        typer.echo("Without any file there is a synthetic family of languages: synthetic:boza/train", err=True)
    else:
        data_view.show_corpora(rows)


@app.command()
@extensible
def check(  # noqa: PLR0913 - options of a command
    names: Annotated[list[str], typer.Argument(help="Names of corpora, or one recipe.")],
    *,
    task: Annotated[str | None, typer.Option(help="Task of the corpora, such as pos (polyloom list tasks).")] = None,
    backbone: Annotated[str | None, typer.Option(help="Model whose tokenizer counts tokens.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Maximum length of an input in tokens.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if an issue is found.")] = False,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Show statistics of corpora and report issues: leaks, unknown labels, duplicates, unknown characters.

    Without a recipe, the role of a corpus follows from its split and its task from its collection.

    Example: polyloom data check wikiann:yo/train wikiann:yo/test --max-length 128 --backbone xlm-roberta-base
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415

    from polyloom.cli.render import data as data_view  # noqa: PLC0415
    from polyloom.data.check import check_corpora  # noqa: PLC0415
    from polyloom.errors import ConfigError  # noqa: PLC0415
    from polyloom.recipes import find_file  # noqa: PLC0415

    languages: Sequence[str] = ()
    if len(names) == 1 and find_file(names[0]).suffix in (".yaml", ".yml"):
        from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
        from polyloom.config.build import find_all_corpora  # noqa: PLC0415

        recipe = load_recipe(names[0])
        own_root = str(root) if root else recipe.data.root
        corpora = find_all_corpora(replace(recipe.data, root=own_root, prepared=None))
        for error in corpora.missing_tests:
            raise error
        uses, languages = corpora.roles(), recipe.languages
        if not uses:
            raise ConfigError(names[0], ["data: names no corpora."])
    else:
        uses = [_use(name, task, root) for name in names]
    tokenizer = None
    if backbone:
        from polyloom.data.tokenization.tokenizer import load_tokenizer  # noqa: PLC0415 - imports transformers

        tokenizer = load_tokenizer(backbone)
    with Console(stderr=True).status("") as status:
        report = check_corpora(
            uses,
            languages=languages,
            tokenizer=tokenizer,
            max_length=max_length,
            progress=lambda name: status.update(f"reading {escape(name)}"),
        )
    if as_json:
        typer.echo(to_json(report.to_dict(), indent=2))
    else:
        data_view.show_report(report)
    if strict and report.issues:
        raise typer.Exit(1)


@app.command()
@extensible
def fetch(
    names: Annotated[list[str], typer.Argument(help="Corpora, such as ud:tr_boun/test, or ud:tr_boun for all splits.")],
    *,
    mirror: Annotated[
        str | None,
        typer.Option(envvar="POLYLOOM_MIRROR", help="URL of a copy of a data root with its SHA256SUMS."),
    ] = None,
    root: Root = None,
) -> None:
    """Download corpora and print their paths. Interrupted downloads resume.

    Example: polyloom data fetch ud:tr_boun ud:yo_ytb/test
    """
    from polyloom.cli.render.data import progress_bar  # noqa: PLC0415
    from polyloom.data.catalog import COLLECTIONS, corpus_files, data_root, licence_of, parse_name  # noqa: PLC0415
    from polyloom.data.fetch import fetch as fetch_corpus  # noqa: PLC0415

    where = data_root(root)
    for name in names:
        with progress_bar() as progress:
            paths = fetch_corpus(name, where, mirror=mirror, progress=progress)
        for path in paths:
            typer.echo(str(path))
        collection, item, _ = parse_name(name)
        licence, non_commercial = licence_of(corpus_files(collection, root=where, item=item)[0], where)
        forbids = ", not for commercial use" if non_commercial else ""
        typer.echo(f"{COLLECTIONS[collection].summary}; licence: {licence}{forbids}.", err=True)


@app.command()
@extensible
def prepare(
    recipe: Annotated[Path, typer.Argument(help="A YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key.key=value.")] = None,
    *,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes that encode text and translations.")] = 1,
    to: Annotated[
        str | None, typer.Option(help="Folder in object storage to upload the datasets to: s3://…, gs://…, az://…")
    ] = None,
) -> None:
    """Check the corpora of a recipe as training does and tokenize them in advance, so that training starts immediately.

    With --to, the datasets are uploaded as well. Machines without the corpora then train with data.prepared=ADDRESS.

    Example: polyloom data prepare recipe.yaml --to s3://bucket/datasets
    """
    from polyloom.config import load_recipe  # noqa: PLC0415 - imports torch
    from polyloom.training.events import DatasetPrepared, Event, IssueFound  # noqa: PLC0415
    from polyloom.workflows.train import prepare_recipe  # noqa: PLC0415 - imports transformers

    def on_event(event: Event) -> None:
        if isinstance(event, DatasetPrepared):
            typer.echo(f"{event.dataset}\t{event.examples}\t{event.path}")
        elif isinstance(event, IssueFound) and not event.refused:
            typer.echo(f"Warning: {event.what}", err=True)

    data = prepare_recipe(load_recipe(recipe, overrides or ()), processes=processes, on_event=on_event)
    if to is not None:
        from polyloom.training.published import publish  # noqa: PLC0415

        publish(data.datasets, to)
        typer.echo(f"Uploaded {len(data.datasets)} datasets. To train with them: data.prepared={to}", err=True)


def _use(name: str, task: str | None, root: Path | None) -> "CorpusRole":
    """Find a corpus; its task follows from its collection, its role from its split. Anything else is training data."""
    from polyloom.data.catalog import resolve  # noqa: PLC0415
    from polyloom.data.corpus_stats import CorpusRole, Role  # noqa: PLC0415
    from polyloom.errors import DataError  # noqa: PLC0415

    corpus = resolve(name, root=root)
    used_for = task or corpus.task
    if used_for is None:
        raise DataError(name, None, "its task does not follow from its name. Add --task, such as --task pos.")
    roles: dict[str | None, Role] = {"dev": "validation", "validation": "validation", "test": "test"}
    language = "/".join(corpus.languages) if corpus.languages else corpus.language or "?"
    return CorpusRole(used_for, language, roles.get(corpus.split, "train"), corpus)
