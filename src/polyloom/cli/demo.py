"""``polyloom demo``: a tour of all commands on synthetic languages, offline, in minutes."""

import os
import shlex
import time
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

LABELLED = ("boza", "kepa", "neno")  # one language of each large branch has labels
KNOWN = (*LABELLED, "bame", "kumi", "nina")  # these and their sisters have raw text
NEW = "baru"  # a third language of boza's branch, added later
STEPS = {"pretrain": 700, "add": 100}
BERT = {
    "model_type": "bert", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192,
    "max_position_embeddings": 64, "vocab_size": 820, "pad_token_id": 1, "initializer_range": 0.05,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "hyper-stack": {
        "name": "hyper-stack", "adapter_size": 24, "task_adapter_size": 12, "projection_size": 8, "hidden_size": 48,
        "embedding_size": 16, "language_dropout": 0.5,
    },
    "madx": {"name": "madx", "adapter_size": 24, "task_adapter_size": 12},
}  # fmt: skip
STAGES = {"hyper-stack": {"languages": 300, "tasks": 300}, "madx": {"head": 40, "languages": 260, "tasks": 300}}


def demo(
    context: typer.Context,
    folder: Annotated[Path, typer.Option("-o", "--output", help="New folder for all files.")] = Path("polyloom-demo"),
    *,
    show: Annotated[bool, typer.Option(help="Open the report in a browser.")] = True,
) -> None:
    """Show everything once: train two methods on synthetic languages, add a language, export, write a report.

    Needs no network and takes about five minutes. Every step is a command that is printed and can be typed.
    """
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already. Choose another folder (-o), or remove it.")
    # The networks are so small that a second thread slows them down; torch reads this when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    started = time.monotonic()
    folder.mkdir(parents=True)
    _say("Synthetic languages: a family of related languages with a known tree (docs/data.md).")
    from polyloom.data.catalog import resolve  # noqa: PLC0415 - takes a while
    from polyloom.data.records import Text  # noqa: PLC0415
    from polyloom.data.synthetic.corpus import FAMILY  # noqa: PLC0415

    tables = folder / "meta"
    tables.mkdir()
    rows = [f"{language}\tbranch of {founder}" for language, founder in FAMILY.groups().items()]
    (tables / "families.tsv").write_text("\n".join(["language\tfamily_name", *rows]) + "\n", encoding="utf-8")
    text = [part for x in KNOWN for part in ("--text", f"{x}=synthetic:{x}/train")]
    _run(context, "data", "vocab", *text, "--mask", "--size", "800", "-o", folder / "vocabulary")

    _say("A small Transformer is pretrained on raw text of six languages.")
    backbone: dict[str, Any] = {"config": BERT, "tokenizer": str(folder / "vocabulary")}
    _write(folder / "backbone.yaml", backbone, {"name": "full"}, tasks=("mlm",), stages={"joint": STEPS["pretrain"]})
    _run(context, "train", folder / "backbone.yaml", "-o", folder / "pretraining")
    _run(context, "export", folder / "pretraining", "mlm/boza", "--backbone", "-o", folder / "pretrained")
    pretrained = {"name": str(folder / "pretrained" / "backbone")}

    for name, method in METHODS.items():
        _say(f"{name} is trained on tags of {', '.join(LABELLED)} and raw text of all six; other tags are zero-shot.")
        _write(folder / f"{name}.yaml", pretrained, method, tasks=("mlm", "pos"), stages=STAGES[name])
        _run(context, "train", folder / f"{name}.yaml", "-o", folder / name)
        _run(context, "evaluate", folder / name)
    _say(
        "Both had the same data and the same number of steps. MAD-X stores an adapter for each language; Hyper-Stack "
        "generates it. Do their scores differ? (One seed: a demo, not a result.)"
    )
    _run(context, "compare", folder / "hyper-stack", folder / "madx")

    nearest = sorted(KNOWN, key=lambda language: FAMILY.distance(NEW, language))
    _say(
        f"A new language, {NEW}, is added from its raw text. All other predictions stay the same. By the family tree "
        f"its nearest languages are {nearest[0]} and {nearest[1]}; see which donors are found."
    )
    records = resolve(f"synthetic:{NEW}/train").records("text")
    lines = [record.text for record in records if isinstance(record, Text)]
    (folder / f"{NEW}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _run(
        context, "add", "language", folder / "hyper-stack", NEW, "--text", folder / f"{NEW}.txt",
        "--steps", STEPS["add"], "--test", f"pos=synthetic:{NEW}/test", "-o", folder / "with-baru",
    )  # fmt: skip

    _say("Its generated tagger is exported as an ordinary adapter, which needs no hypernetwork.")
    _run(context, "export", folder / "with-baru", f"pos/{NEW}", "-o", folder / f"pos-{NEW}")
    _say("Do the trained language embeddings agree with the family tree?")
    _run(context, "probe", "languages", folder / "hyper-stack", "--typology", tables)

    _run(context, "report", folder / "hyper-stack", folder / "madx", "-o", folder / "report.html")
    _say(f"Done in {(time.monotonic() - started) / 60:.1f} minutes. Open {folder / 'report.html'}.")
    if show:
        webbrowser.open((folder / "report.html").resolve().as_uri())


def _say(text: str) -> None:
    typer.echo(f"\n{text}", err=True)


def _run(context: typer.Context, *arguments: object) -> None:
    """Print a command and run it in this process, so that libraries are imported once."""
    words = [str(argument) for argument in arguments]
    typer.echo(f"\n$ polyloom {shlex.join(words)}", err=True)
    context.find_root().command.main(words, standalone_mode=False)


def _write(
    path: Path, backbone: dict[str, Any], method: dict[str, Any], *, tasks: tuple[str, ...], stages: dict[str, int]
) -> None:
    from polyloom.io.yaml import dump_yaml  # noqa: PLC0415

    train = {f"mlm/{x}": f"synthetic:{x}/train" for x in KNOWN}
    test = {f"mlm/{x}": f"synthetic:{x}/test" for x in KNOWN}
    if "pos" in tasks:
        train |= {f"pos/{x}": f"synthetic:{x}/train" for x in LABELLED}
        test = {f"pos/{x}": f"synthetic:{x}/test" for x in KNOWN}
    recipe = {
        "backbone": backbone, "method": method, "languages": list(KNOWN), "tasks": {task: {} for task in tasks},
        "data": {"train": train, "test": test}, "mixture": {"datasets_per_batch": 6},
        "optim": {"lr": 3e-3, "warmup_steps": 30},
        "train": {"rows_per_batch": 60, "max_length": 48, "dropout": False},
        "stages": {stage: {"train": {"steps": steps}} for stage, steps in stages.items()},
    }  # fmt: skip
    path.write_text(dump_yaml(recipe), encoding="utf-8")
