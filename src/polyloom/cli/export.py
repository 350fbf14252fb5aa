"""``polyloom export``, ``import``, ``push`` and ``pull``: exchange adapters as files."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from polyloom.cli.options import Checkpoint


def export(  # noqa: PLR0913 - options of a command
    run: Annotated[Path, typer.Argument(help="Trained run.")],
    conditions: Annotated[list[str] | None, typer.Argument(help="Conditions to export, such as ner/tr.")] = None,
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="A new directory.")],
    every: Annotated[bool, typer.Option("--all", help="Export all conditions that the run supports.")] = False,
    file_format: Annotated[
        Literal["polyloom", "adapterhub", "peft", "merged", "onnx", "onnx-baked"],
        typer.Option("--format", help="File format."),
    ] = "polyloom",
    backbone: Annotated[
        bool, typer.Option("--backbone", help="Also write the backbone, with its trained parameters.")
    ] = False,
    base_name: Annotated[
        str | None, typer.Option(help="For peft: what the other server calls the model of the adapter.")
    ] = None,
    checkpoint: Checkpoint = None,
) -> None:
    r"""Export the adapters of conditions as files, for runs of any method.

    An exported adapter predicts exactly what the run does, without its method: polyloom predict DIR ner/tr.

    Other formats refuse what they cannot hold. adapterhub: bottlenecks, with the head. peft: LoRA (block: lora).
    merged: a Transformers model with the LoRA of a condition inside, for any program that loads such models.
    onnx: one graph per task, whose adapters are inputs, with the adapters of all conditions beside it. onnx-baked: a
    graph with one condition's adapter inside. Both contain the backbone.

    Example: polyloom export runs/first ner/tr -o ner-tr

    Example: polyloom export runs/first --all --backbone --format adapterhub -o adapters
    """
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.loading import load_run_dir  # noqa: PLC0415
    from polyloom.model import supported_conditions  # noqa: PLC0415
    from polyloom.workflows.export import export_run  # noqa: PLC0415 - imports torch

    if bool(conditions) == every:
        raise typer.BadParameter("name conditions such as ner/tr, or give --all.")
    if base_name and file_format != "peft":
        raise typer.BadParameter("--base-name is for --format peft.")
    chosen = [Condition.parse(text) for text in conditions or []]
    loaded = load_run_dir(run, checkpoint=checkpoint)
    if every:
        chosen = [c for c in supported_conditions(loaded.model.method) if c.task in loaded.model.tasks]
    export_run(
        loaded, chosen, into, format=file_format, backbone=backbone, base_name=base_name,
        progress=lambda path: typer.echo(str(path)),
    )  # fmt: skip


def import_(
    folders: Annotated[
        list[Path], typer.Argument(help="Adapters in the order in which they are stacked: language, task.")
    ],
    *,
    condition: Annotated[str, typer.Option("--as", help="Condition of the adapter, such as ner/tr.")],
    backbone: Annotated[str, typer.Option(help="Model of the adapter: a name on the Hub, or a directory.")],
    into: Annotated[Path, typer.Option("-o", "--output", help="A new directory.")],
    labels: Annotated[str, typer.Option(help="Labels of a PEFT classifier in order, separated by commas.")] = "",
) -> None:
    r"""Import an adapter of AdapterHub (language, task, invertible) or a LoRA of PEFT.

    Several imported adapters in one folder can be loaded together: polyloom import … -o bank/ner/tr, then
    polyloom predict bank ner/tr.

    Example: polyloom import tr-wiki ner-adapter --as ner/tr --backbone xlm-roberta-base -o bank/ner/tr
    """
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.workflows.import_adapter import import_adapter  # noqa: PLC0415 - imports torch

    names = [name.strip() for name in labels.split(",") if name.strip()]
    typer.echo(str(import_adapter(folders, Condition.parse(condition), into, backbone=backbone, labels=names)))


def push(
    folder: Annotated[Path, typer.Argument(help="Exported adapters.")],
    repo: Annotated[str, typer.Argument(help="Name on the Hugging Face Hub: owner/name.")],
    *,
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
) -> None:
    r"""Upload exported adapters to the Hugging Face Hub, with their cards.

    Example: polyloom push ner-tr me/ner-tr
    """
    from polyloom.export import hub  # noqa: PLC0415 - imports torch

    typer.echo(hub.push(folder, repo, private=private))


def pull(
    repo: Annotated[str, typer.Argument(help="Name on the Hugging Face Hub: owner/name.")],
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="A new directory.")],
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
) -> None:
    r"""Download adapters from the Hugging Face Hub. Only safetensors, JSON and text files are downloaded.

    Example: polyloom pull me/ner-tr -o ner-tr
    """
    from polyloom.export import hub  # noqa: PLC0415 - imports torch

    typer.echo(str(hub.pull(repo, into, revision=revision)))
