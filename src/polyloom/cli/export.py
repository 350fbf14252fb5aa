"""``polyloom export``, ``import``, ``push`` and ``pull``: adapters as files."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    conditions: Annotated[list[str] | None, typer.Argument(help="Tasks and languages, such as ner/tr.")] = None,
    *,
    into: Annotated[Path, typer.Option("-o", "--output", help="A new directory.")],
    every: Annotated[bool, typer.Option("--all", help="All conditions that the run can serve.")] = False,
    to: Annotated[
        Literal["polyloom", "adapterhub", "peft", "onnx", "onnx-baked"], typer.Option(help="Whose format.")
    ] = "polyloom",
    backbone: Annotated[
        bool, typer.Option("--backbone", help="Also write the backbone, with all that was trained in it.")
    ] = False,
) -> None:
    r"""Write the adapter of a task and language as an ordinary file, whatever method made it.

    The adapter answers without that method, bit for bit as the run does: polyloom predict DIR ner/tr. For other
    libraries: --to adapterhub (bottlenecks, with head), --to peft (block: lora). What a format cannot hold is refused.
    --to onnx writes one graph of a task whose adapters are inputs, with the adapters of all conditions beside it;
    --to onnx-baked one with a condition's adapter inside. Both contain the backbone.

    Example: polyloom export runs/first ner/tr -o ner-tr

    Example: polyloom export runs/first --all --backbone --to adapterhub -o adapters
    """
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.model import supported_conditions  # noqa: PLC0415
    from polyloom.workflows.export import export_run  # noqa: PLC0415 - imports torch
    from polyloom.workflows.run import Run  # noqa: PLC0415

    if bool(conditions) == every:
        raise typer.BadParameter("name conditions such as ner/tr, or give --all.")
    asked = [Condition.parse(text) for text in conditions or []]
    loaded = Run.load(run)
    asked = [c for c in supported_conditions(loaded.model.method) if c.task in loaded.model.tasks] if every else asked
    export_run(loaded, asked, into, to=to, backbone=backbone, progress=lambda path: typer.echo(str(path)))


def import_(
    folders: Annotated[list[Path], typer.Argument(help="Adapters that act one after another: a language's, a task's.")],
    *,
    condition: Annotated[str, typer.Option("--as", help="What it is for, such as ner/tr.")],
    backbone: Annotated[str, typer.Option(help="The model that it is for: a name on the Hub, or a directory.")],
    into: Annotated[Path, typer.Option("-o", "--output", help="A new directory.")],
    labels: Annotated[str, typer.Option(help="Labels of a PEFT classifier in order, with commas.")] = "",
) -> None:
    r"""Read an adapter of AdapterHub (language, task, invertible) or a LoRA of PEFT; it then answers as any of ours.

    Several adapters in one folder make a bank: polyloom import … -o bank/ner/tr; polyloom predict bank ner/tr.

    Example: polyloom import tr-wiki ner-adapter --as ner/tr --backbone xlm-roberta-base -o bank/ner/tr
    """
    from polyloom.conditions import Condition  # noqa: PLC0415
    from polyloom.workflows.import_adapter import import_adapter  # noqa: PLC0415 - imports torch

    names = [name.strip() for name in labels.split(",") if name.strip()]
    typer.echo(str(import_adapter(folders, Condition.parse(condition), into, backbone=backbone, labels=names)))


def push(
    folder: Annotated[Path, typer.Argument(help="What export wrote.")],
    repo: Annotated[str, typer.Argument(help="Name on the Hugging Face Hub: owner/name.")],
    *,
    private: Annotated[bool, typer.Option("--private", help="Only for you.")] = False,
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
    r"""Download adapters from the Hugging Face Hub: safetensors, JSON and text only, never pickles or code.

    Example: polyloom pull me/ner-tr -o ner-tr
    """
    from polyloom.export import hub  # noqa: PLC0415 - imports torch

    typer.echo(str(hub.pull(repo, into, revision=revision)))
