"""``polyloom add``: a language or a task that a trained run does not know yet."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from polyloom.workflows.add_language import AddLanguageResult

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Add a language or a task to a run; nothing else changes."
)


@app.command(name="language")
def language(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    name: Annotated[str, typer.Argument(help="Code of the new language, such as gn.")],
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="Folder for the run that knows it.")],
    text: Annotated[str | None, typer.Option(help="TextPacking text of the language.")] = None,
    examples: Annotated[
        list[str] | None, typer.Option(help="Labelled examples: pos=gn.conllu; translations: mt/en=pairs.tsv.")
    ] = None,
    test: Annotated[list[str] | None, typer.Option(help="Scored before and after, such as pos=test.conllu.")] = None,
    init_from: Annotated[
        Literal["best-donor", "mean", "typology", "family", "fresh"], typer.Option(help="What it begins as.")
    ] = "best-donor",
    like: Annotated[str, typer.Option(help="Languages to begin as, with commas, instead.")] = "",
    typology: Annotated[
        Path | None, typer.Option(help="Tables of families and features; meta/ beside the corpora.")
    ] = None,
    add_tokens: Annotated[
        int, typer.Option(min=0, help="New pieces for letters that the tokenizer does not know.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="How many steps are taken.")] = 200,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
) -> None:
    r"""Fit what a method has for each language, for a new one: an embedding where weights are generated.

    Everything else stays as it is, and so does, bit for bit, every answer in every other language. Donors are the
    languages under whose weights the new one's text is likeliest: it begins as the best of them. --init-from typology
    takes the mean of the three nearest languages by features, --init-from family the mean of its family
    (docs/probes.md says which tables are read).

    In translation, which needs pairs with a language that it knows, it also begins with the token of its best donor.

    Example: polyloom add language runs/first gn --text gn.txt --test pos=gn.conllu -o runs/gn
    """
    from polyloom.data.typology import Typology  # noqa: PLC0415
    from polyloom.workflows.add_language import AddLanguageConfig, NewLanguageData, add_language  # noqa: PLC0415 - imports torch
    from polyloom.workflows.run import Run  # noqa: PLC0415

    names = tuple(part.strip() for part in like.split(",") if part.strip())
    added = add_language(
        Run.load(run), name, into,
        data=NewLanguageData(text, _pairs(examples), _pairs(test)),
        settings=AddLanguageConfig(init_from=init_from, like=names, steps=steps, lr=lr, add_tokens=add_tokens),
        typology=Typology.read(typology) if typology else None,
        on_event=_show,
    )  # fmt: skip
    _report(added)


@app.command(name="task")
def task(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    name: Annotated[str, typer.Argument(help="The new task: pos, ner, dep or nli.")],
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="Folder for the run that knows it.")],
    examples: Annotated[list[str], typer.Option(help="Examples by language, such as en=en.conllu.")],
    test: Annotated[list[str] | None, typer.Option(help="Scored before and after, such as tr=test.conllu.")] = None,
    like: Annotated[str, typer.Option(help="A task to begin as; fresh by default.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="How many steps are taken.")] = 400,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
) -> None:
    r"""Fit what a method has for each task, and a head, for a new one. No other task's answers change.

    Example: polyloom add task runs/first ner --examples en=ner.tsv --test tr=tr.tsv -o runs/first-ner
    """
    from polyloom.workflows.add_language import AddLanguageConfig, add_task  # noqa: PLC0415 - imports torch
    from polyloom.workflows.run import Run  # noqa: PLC0415

    settings = AddLanguageConfig(like=(like,) if like else (), steps=steps, lr=lr)
    _report(
        add_task(
            Run.load(run), name, into, examples=_pairs(examples), test=_pairs(test), settings=settings, on_event=_show
        )
    )


def _report(added: "AddLanguageResult") -> None:
    typer.echo(f"began as\t{','.join(added.like) or '-'}")
    if added.donors:
        typer.echo("donors\t" + ", ".join(f"{donor} {value:.3f}" for donor, value in added.donors[:5]))
    typer.echo("held out\t" + "\t".join(f"{value:.3f}" for value in added.held_out))
    for condition, value in added.after.items():
        typer.echo(f"{condition}\t{added.before[condition]:.2f}\t{value:.2f}")
    typer.echo(f"seconds\t{added.seconds:.1f}")
    if added.added_tokens:
        typer.echo(f"new pieces\t{added.added_tokens}")
    elif added.unknown > 0.01:
        share = f"{added.unknown:.0%} of the text's pieces are unknown to the tokenizer."
        typer.echo(f"polyloom: {share} Let them have pieces of their own: --add-tokens 200", err=True)


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in given or []:
        task, equals, corpus = text.partition("=")
        if not equals or not task or not corpus:
            raise typer.BadParameter(f"{text!r}: expected NAME=CORPUS, such as pos=gn.conllu.")
        pairs[task] = corpus
    return pairs


def _show(event: Mapping[str, Any]) -> None:
    if event["score"] is not None:
        typer.echo(f"step {event['step']} of {event['of']}: held out {event['score']:.3f}", err=True)
