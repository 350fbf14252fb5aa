"""``polyloom demo``: everything once, offline, in minutes, on languages that were made up."""

import os
import shlex
import time
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

LABELLED = ("boza", "kepa", "neno")  # one language of each large branch has labels
KNOWN = (*LABELLED, "bame", "kumi", "nina")  # of these and their sisters there is text
NEW = "baru"  # a third one of boza's branch, which is added later
STEPS = {"read": 700, "train": 300, "grow": 100}
BERT = {
    "model_type": "bert", "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192,
    "max_position_embeddings": 64, "vocab_size": 820, "pad_token_id": 1, "initializer_range": 0.05,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "hyperx": {"name": "hyperx", "adapter_size": 24, "projection_size": 24, "hidden_size": 48, "embedding_size": 16},
    "madx": {"name": "madx", "adapter_size": 24, "task_adapter_size": 12},
}


def demo(
    folder: Annotated[Path, typer.Option("-o", "--output", help="A new folder for all of it.")] = Path("polyloom-demo"),
    *,
    show: Annotated[bool, typer.Option(help="Open the report in a browser.")] = True,
) -> None:
    """See everything once: make languages up, train two methods, add a language, export an adapter, open the report.

    Needs no network and about three minutes. Every step is a command that is shown, and can be typed.
    """
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already. Choose another folder (-o), or remove it.")
    # Networks so small that a second thread only waits, for minutes if anything else runs; torch reads this at import.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    started = time.monotonic()
    folder.mkdir(parents=True)
    _say("Twelve related languages are made up (docs/data.md, 'a synthetic family'). They share words, as kin do.")
    text = [part for x in KNOWN for part in ("--text", f"{x}=synthetic:{x}/train")]
    _run("data", "vocab", *text, "--mask", "--size", "800", "-o", folder / "vocabulary")
    _say("A small Transformer reads raw text of six of them.")
    backbone: dict[str, Any] = {"config": BERT, "tokenizer": str(folder / "vocabulary")}
    _write(folder / "backbone.yaml", backbone, {"name": "full"}, tasks=("mlm",), steps=STEPS["read"])
    _run("train", folder / "backbone.yaml", "-o", folder / "reading")
    _run("export", folder / "reading", "mlm/boza", "--backbone", "-o", folder / "read")
    pretrained = {"name": str(folder / "read" / "backbone")}
    for name, method in METHODS.items():
        _say(f"{name} learns tags in {', '.join(LABELLED)}, and raw text of all six: tags of the others are zero-shot.")
        _write(folder / f"{name}.yaml", pretrained, method, tasks=("mlm", "pos"), steps=STEPS["train"])
        _run("train", folder / f"{name}.yaml", "-o", folder / name)
        _run("evaluate", folder / name)
    _run("compare", folder / "hyperx", folder / "madx")
    _say(f"A language is added that nobody has seen, {NEW}, by its raw text alone. Nothing else changes by a bit.")
    (folder / f"{NEW}.txt").write_text("\n".join(_text(NEW)) + "\n", encoding="utf-8")
    _run(
        "add", "language", folder / "hyperx", NEW, "--text", folder / f"{NEW}.txt", "--steps", STEPS["grow"],
        "--test", f"pos=synthetic:{NEW}/test", "-o", folder / "grown",
    )  # fmt: skip
    _say("Its tagger becomes an ordinary file, which answers without the hypernetwork.")
    _run("export", folder / "grown", f"pos/{NEW}", "-o", folder / f"pos-{NEW}")
    _run("probe", "languages", folder / "hyperx")
    _run("report", folder / "hyperx", folder / "madx", "-o", folder / "report.html")
    _say(f"All of it took {(time.monotonic() - started) / 60:.1f} minutes. Look at {folder / 'report.html'}.")
    if show:
        webbrowser.open((folder / "report.html").resolve().as_uri())


def _say(text: str) -> None:
    typer.echo(f"\n{text}", err=True)


def _run(*arguments: object) -> None:
    """Run a command of ours, in this process, after showing it."""
    from polyloom.cli import app  # noqa: PLC0415 - it knows us

    words = [str(argument) for argument in arguments]
    typer.echo(f"\n$ polyloom {shlex.join(words)}", err=True)
    app(words, standalone_mode=False)


def _write(path: Path, backbone: dict[str, Any], method: dict[str, Any], *, tasks: tuple[str, ...], steps: int) -> None:
    from polyloom.io.yaml import dump_yaml  # noqa: PLC0415

    learnt = {f"mlm/{x}": f"synthetic:{x}/train" for x in KNOWN}
    test = {f"mlm/{x}": f"synthetic:{x}/test" for x in KNOWN}
    if "pos" in tasks:
        learnt |= {f"pos/{x}": f"synthetic:{x}/train" for x in LABELLED}
        test = {f"pos/{x}": f"synthetic:{x}/test" for x in KNOWN}
    recipe = {
        "backbone": backbone, "method": method, "languages": list(KNOWN), "tasks": {task: {} for task in tasks},
        "data": {"train": learnt, "test": test}, "mixture": {"datasets_per_batch": 6},
        "optim": {"lr": 3e-3, "warmup_steps": 30},
        "train": {"steps": steps, "rows_per_batch": 60, "max_length": 48, "dropout": False},
    }  # fmt: skip
    path.write_text(dump_yaml(recipe), encoding="utf-8")


def _text(language: str) -> list[str]:
    from polyloom.data.catalog import resolve  # noqa: PLC0415 - takes a while
    from polyloom.data.records import Text  # noqa: PLC0415

    return [
        record.text for record in resolve(f"synthetic:{language}/train").records("text") if isinstance(record, Text)
    ]
