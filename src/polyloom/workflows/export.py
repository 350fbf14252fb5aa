"""Export the adapters of a run as files."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from polyloom.backbones import Backbone
from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import save_tokenizer
from polyloom.errors import ExportError, PolyloomError
from polyloom.evaluate.saved import read_stored
from polyloom.export.adapter import Adapter, generate_adapters, write_adapter
from polyloom.export.adapterhub import write_adapterhub
from polyloom.export.card import card
from polyloom.export.onnx import write_onnx
from polyloom.export.peft import write_peft
from polyloom.loading import tokenizer_name
from polyloom.workflows.run import Run

Format = Literal["polyloom", "adapterhub", "peft", "onnx", "onnx-baked"]
Progress = Callable[[Path], None]
_BACKBONE = "backbone"  # directory of the backbone beside the adapters


def export_run(
    run: Run,
    conditions: Sequence[Condition],
    into: Path,
    *,
    to: Format = "polyloom",
    backbone: bool = False,
    progress: Progress = lambda _: None,
) -> list[Path]:
    """Write the adapters of conditions.

    Args:
        run: A trained run.
        conditions: The adapter of a single one goes into `into` itself, several go into ``into/task/language``.
        into: A new directory.
        to: The format.
        backbone: Also write the backbone, with all that was trained in it; the adapters are then for that one.
        progress: Called with every directory that was written.
    """
    if into.exists():
        raise ExportError(f"{into}: exists already. Choose another name or remove it.")
    graph = to in ("onnx", "onnx-baked")  # it contains the backbone
    if not (backbone or graph) and any("backbone" in stage.trains for stage in run.model.method.stages()):
        raise ExportError(
            f"{run.path}: {run.recipe.method.name} trained the whole backbone, so an adapter is of no use without it. "
            "Add --backbone, which writes it once beside the adapters."
        )
    for condition in conditions:
        run.model.task(condition.task)
        run.model.method.require_supported(condition)
    if graph:
        progress(write_onnx(run.model, conditions, into, baked=to == "onnx-baked"))
        return [into]
    if backbone:
        save_backbone(run, into / _BACKBONE)
    about, scores, written = _about(run), _scores(run), []
    for adapter in generate_adapters(run.model, conditions, whole=not backbone):
        condition = adapter.condition
        path = into if len(conditions) == 1 and not backbone else into.joinpath(*str(condition).split("/"))
        facts = about | {"scores": scores.get(str(condition), []), "zero_shot": str(condition) not in run.trained_on}
        if backbone:
            name = os.path.relpath(into / _BACKBONE, path)
            facts |= {"backbone": name, "settings": {"name": name, "dtype": run.recipe.backbone.dtype}}
        write(replace(adapter, about=facts), run.model.backbone, path, to=to)
        written.append(path)
        progress(path)
    return written


def write(adapter: Adapter, backbone: Backbone, path: Path, *, to: Format = "polyloom") -> None:
    """Write one adapter in a format, with its card."""
    if to == "polyloom":
        write_adapter(adapter, path, card=card(adapter, to=to, path=path.name))
        return
    if to == "adapterhub":
        folders = [str(folder.relative_to(path.parent)) for folder in write_adapterhub(adapter, backbone.shape, path)]
    else:
        folders = [str(write_peft(adapter, backbone, path).relative_to(path.parent))]
    text = card(adapter, to=to, path=path.name, folders=folders)
    (path / "README.md").write_text(text, encoding="utf-8")


def save_backbone(run: Run, into: Path) -> None:
    """Write a run's trained backbone with its tokenizer, as an ordinary model of Transformers."""
    run.model.backbone.model.save_pretrained(into)
    save_tokenizer(tokenizer_name(run.recipe), into)


def _about(run: Run) -> dict[str, Any]:
    """Describe what all adapters of a run have in common."""
    settings = {key: value for key, value in asdict(run.recipe.backbone).items() if value is not None}
    return {
        "method": run.recipe.method.name,
        "backbone": run.recipe.backbone.name or run.recipe.backbone.preset or "",
        "settings": settings,
        "tokenizer": run.predictor.tokenizer.fingerprint,
        "max_length": run.predictor.max_length,
        "licences": _licences(run),
    }


def _licences(run: Run) -> dict[str, str | None]:
    licences: dict[str, str | None] = {}
    for name in {name: None for names in run.recipe.data.train.values() for name in names}:
        try:
            (corpus,) = run.recipe.data.resolve([name])
            licences[name] = corpus.licence
        except PolyloomError:  # the corpus is not on this machine
            licences[name] = None
    return licences


def _scores(run: Run) -> dict[str, list[dict[str, Any]]]:
    try:
        matrix = read_stored(run.path, "test", checkpoint=run.checkpoint.name)
    except PolyloomError:
        return {}
    return {
        str(condition): [
            {"metric": score.metric.name, "value": score.value, "signature": score.signature} for score in result.scores
        ]
        for condition, result in matrix.results.items()
    }
