"""``polyloom add``: add a language or a task to a trained run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polyloom.cli.options import opens_runs

if TYPE_CHECKING:
    from polyloom.training.events import Event, OnEvent
    from polyloom.workflows.add_language import AddLanguageResult

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Add a language or a task to a trained run. All other predictions stay the same.",
)


@app.command(name="language")
@opens_runs
def language(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Trained run.")],
    name: Annotated[str, typer.Argument(help="Code of the new language, such as gn.")],
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new run.")],
    text: Annotated[str | None, typer.Option(help="Raw text of the language.")] = None,
    examples: Annotated[
        list[str] | None, typer.Option(help="Labelled examples: pos=gn.conllu; translations: mt/en=pairs.tsv.")
    ] = None,
    test: Annotated[list[str] | None, typer.Option(help="Test data, scored before and after: pos=test.conllu.")] = None,
    init_from: Annotated[
        Literal["best-donor", "mean", "typology", "family", "fresh"],
        typer.Option(help="How its parameters are initialised."),
    ] = "best-donor",
    copy_languages: Annotated[
        str, typer.Option(help="Languages to copy (their mean), separated by commas, instead of --init-from.")
    ] = "",
    typology: Annotated[
        Path | None, typer.Option(help="Tables of families and features; meta/ beside the corpora.")
    ] = None,
    add_tokens: Annotated[
        int, typer.Option(min=0, help="Number of new tokens for characters that the tokenizer does not know.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Number of optimizer steps.")] = 200,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
) -> None:
    r"""Add a language to a trained run by fitting only its new parameters.

    Those are the language's embedding where weights are generated, its adapter where they are stored. All other
    parameters, and all predictions in other languages, stay bit for bit the same. By default the new language starts
    as its best donor: the language whose weights predict the held-out data best. --init-from typology takes the mean of
    the three nearest languages by features, --init-from family the mean of its family (docs/probes.md).

    Translation needs pairs with a known language. The new language then also uses the token of its best donor.

    Example: polyloom add language runs/first gn --text gn.txt --test pos=gn.conllu -o runs/gn
    """
    from polyloom.data.typology import Typology  # noqa: PLC0415
    from polyloom.loading import load_run_dir  # noqa: PLC0415 - imports torch
    from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language  # noqa: PLC0415 - imports torch

    names = tuple(part.strip() for part in copy_languages.split(",") if part.strip())
    settings = AddLanguageConfig(init_from=init_from, copy_languages=names, steps=steps, lr=lr, add_tokens=add_tokens)
    result = add_language(
        load_run_dir(run), name, into,
        data=NewLanguageData(text, _corpora(examples), _corpora(test)),
        settings=settings,
        typology=Typology.read(typology) if typology else None,
        on_event=_show_progress(),
    )  # fmt: skip
    _report(result)


@app.command(name="task")
@opens_runs
def task(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Trained run.")],
    name: Annotated[str, typer.Argument(help="Name of the new task (polyloom list tasks).")],
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="Folder of the new run.")],
    examples: Annotated[list[str], typer.Option(help="Examples by language, such as en=en.conllu.")],
    test: Annotated[list[str] | None, typer.Option(help="Test data, scored before and after: tr=test.conllu.")] = None,
    copy_task: Annotated[str | None, typer.Option(help="Task to copy. Default: fresh parameters.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of optimizer steps.")] = 400,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
) -> None:
    r"""Add a task to a trained run by fitting only its new parameters and its head.

    Example: polyloom add task runs/first ner --examples en=ner.tsv --test tr=tr.tsv -o runs/first-ner
    """
    from polyloom.loading import load_run_dir  # noqa: PLC0415 - imports torch
    from polyloom.workflows.add_language import AddLanguageConfig, add_task  # noqa: PLC0415 - imports torch

    result = add_task(
        load_run_dir(run), name, into,
        examples=_corpora(examples),
        test=_corpora(test),
        copy_task=copy_task,
        settings=AddLanguageConfig(steps=steps, lr=lr),
        on_event=_show_progress(),
    )  # fmt: skip
    _report(result)


def _report(result: "AddLanguageResult") -> None:
    typer.echo(f"initialised from\t{','.join(result.copied) or '-'}")
    if result.donors:
        typer.echo("donors\t" + ", ".join(f"{donor} {value:.3f}" for donor, value in result.donors[:5]))
    typer.echo("held out\t" + "\t".join(f"{value:.3f}" for value in result.held_out))
    for condition, value in result.after.items():
        typer.echo(f"{condition}\t{result.before[condition]:.2f}\t{value:.2f}")
    typer.echo(f"seconds\t{result.seconds:.1f}")
    if result.added_tokens:
        typer.echo(f"new tokens\t{result.added_tokens}")
    elif result.unknown > 0.01:
        share = f"{result.unknown:.0%} of the text's tokens are unknown to the tokenizer."
        typer.echo(f"polyloom: {share} Add tokens for them: --add-tokens 200", err=True)


def _corpora(options: list[str] | None) -> dict[str, str]:
    """Parse options such as ``pos=gn.conllu``."""
    corpora = {}
    for text in options or []:
        name, equals, corpus = text.partition("=")
        if not (name and equals and corpus):
            raise typer.BadParameter(f"{text!r}: expected NAME=CORPUS, such as pos=gn.conllu.")
        corpora[name] = corpus
    return corpora


def _show_progress() -> "OnEvent":
    """Return a function that prints every validation, and in between what was done, at most every ten seconds."""
    from polyloom.cli.render.train import INTERVAL  # noqa: PLC0415 - imports rich
    from polyloom.training.events import DonorScored, RowStep  # noqa: PLC0415 - imports NumPy

    last = time.monotonic()

    def on_event(event: "Event") -> None:
        nonlocal last
        waited = time.monotonic() - last > INTERVAL
        match event:
            case RowStep(score=float(score)):
                text = f"step {event.step} of {event.steps}: held-out selection score {score:.3f}"
            case RowStep(loss=float(loss)) if waited:
                text = f"step {event.step} of {event.steps}: loss {loss:.3f} nats"
            case DonorScored() if waited:
                text = f"donor {event.done} of {event.total}: {event.donor}, selection score {event.score:.3f}"
            case _:
                return
        last = time.monotonic()
        typer.echo(text, err=True)

    return on_event
