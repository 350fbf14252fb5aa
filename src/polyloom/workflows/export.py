"""Export the adapters of a run as files."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from polyloom.backbones import Backbone
from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import save_tokenizer
from polyloom.errors import ExportError, PolyloomError
from polyloom.evaluate.saved import read_stored
from polyloom.export.adapter import BACKBONE, Adapter, backbone_note, generate_adapters, write_adapter
from polyloom.export.adapterhub import write_adapterhub
from polyloom.export.card import card
from polyloom.export.merged import write_merged
from polyloom.export.onnx import write_onnx
from polyloom.export.peft import write_peft
from polyloom.io.atomic import atomic_dir
from polyloom.io.machine_notes import last_name, local_name, note_folder
from polyloom.loading import LoadedModel, tokenizer_name

Format = Literal["polyloom", "adapterhub", "peft", "merged", "onnx", "onnx-baked"]
Progress = Callable[[Path], None]


def export_run(  # noqa: PLR0913 - settings of an export
    run: LoadedModel,
    conditions: Sequence[Condition],
    into: Path,
    *,
    format: Format = "polyloom",  # noqa: A002 - as on the command line
    backbone: bool = False,
    base_name: str | None = None,
    progress: Progress = lambda _: None,
) -> list[Path]:
    """Write the adapters of conditions: all of them, or nothing if it fails.

    Args:
        run: A trained run.
        conditions: The adapter of a single one goes into `into` itself, several go into ``into/task/language``.
        into: A new directory.
        format: The format of the files.
        backbone: Also write the backbone, with all that was trained in it; the adapters are then for that one.
        base_name: For PEFT: the name of the model that the files give. Default: that of the run.
        progress: Called with every directory, after all were written.
    """
    if into.exists():
        raise ExportError(f"{into}: exists already. Choose another name or remove it.")
    graph = format in ("onnx", "onnx-baked")
    whole = graph or format == "merged"  # it contains the backbone
    if not (backbone or whole) and any("backbone" in stage.trains for stage in run.model.method.stages()):
        raise ExportError(
            f"{run.path}: {run.recipe.method.name} trained the whole backbone, so an adapter is of no use without it. "
            "Add --backbone, which writes it once beside the adapters."
        )
    for condition in conditions:
        run.model.task(condition.task)
        run.model.method.require_supported(condition)
    if graph:
        written = [write_onnx(run.model, conditions, into, baked=format == "onnx-baked")]
    else:
        written = []
        with atomic_dir(into) as partial:
            for adapter, place in _adapters(run, conditions, backbone=backbone):
                if base_name:
                    adapter = replace(adapter, about={**adapter.about, "backbone": base_name})  # noqa: PLW2901
                write(adapter, run.model.backbone, partial / place, name=(into / place).name, file_format=format)
                if format == "merged":
                    save_tokenizer(tokenizer_name(run.recipe), partial / place)
                written.append(into / place)
            if backbone:
                save_backbone(run, partial / BACKBONE)
    for path in written:
        progress(path)
    return written


def _adapters(run: LoadedModel, conditions: Sequence[Condition], *, backbone: bool) -> Iterator[tuple[Adapter, Path]]:
    """Yield adapters, described, and the place of each in the export."""
    about, scores = _about(run), _scores(run)
    for adapter in generate_adapters(run.model, conditions, whole=not backbone):
        condition = adapter.condition
        place = Path() if len(conditions) == 1 and not backbone else Path(*str(condition).split("/"))
        facts = about | {"scores": scores.get(str(condition), []), "zero_shot": str(condition) not in run.trained_on}
        if backbone:
            name = os.path.relpath(BACKBONE, place)
            facts |= {"backbone": name, "settings": {"name": name, "dtype": run.recipe.backbone.dtype}}
        else:
            note_folder(backbone_note(adapter.identity), run.recipe.backbone.name or "")
            note_folder(about["tokenizer"], tokenizer_name(run.recipe))
        yield replace(adapter, about=facts), place


def write(adapter: Adapter, backbone: Backbone, path: Path, *, name: str, file_format: Format = "polyloom") -> None:
    """Write one adapter in a format, with its card.

    Args:
        adapter: The adapter.
        backbone: The backbone that it is for.
        path: A new directory.
        name: Name that the directory will have.
        file_format: The format.
    """
    if file_format == "polyloom":
        write_adapter(adapter, path, card=card(adapter, file_format=file_format, path=name))
        return
    if file_format == "adapterhub":
        folders = write_adapterhub(adapter, backbone.shape, path)
    else:
        folders = [(write_merged if file_format == "merged" else write_peft)(adapter, backbone, path)]
    text = card(
        adapter, file_format=file_format, path=name, folders=[str(Path(name) / f.relative_to(path)) for f in folders]
    )
    (path / "README.md").write_text(text, encoding="utf-8")


def save_backbone(run: LoadedModel, into: Path) -> None:
    """Write a run's trained backbone with its tokenizer, as an ordinary model of Transformers."""
    run.model.backbone.model.save_pretrained(into)
    save_tokenizer(tokenizer_name(run.recipe), into)


def _about(run: LoadedModel) -> dict[str, Any]:
    """Describe what all adapters of a run have in common."""
    settings = {key: value for key, value in asdict(run.recipe.backbone).items() if value is not None}
    settings |= {key: local_name(settings[key]) for key in ("name", "tokenizer") if key in settings}
    return {
        "method": run.recipe.method.name,
        "backbone": last_name(run.recipe.backbone.name or run.recipe.backbone.preset or ""),
        "settings": settings,
        "tokenizer": run.predictor.tokenizer.identity,
        "max_length": run.predictor.max_length,
        "licences": _licences(run),
    }


def _licences(run: LoadedModel) -> dict[str, str | None]:
    """Return the licences of the training data. Files are named without their folders."""
    licences: dict[str, str | None] = {}
    for name in {name: None for names in run.recipe.data.train.values() for name in names}:
        try:
            (corpus,) = run.resolve([name])
            licence = corpus.licence
        except PolyloomError:  # the corpus is not on this machine
            licence = None
        licences.setdefault(name if re.match(r"[a-z0-9-]+:", name) else name.rpartition("/")[2], licence)
    return licences


def _scores(run: LoadedModel) -> dict[str, list[dict[str, Any]]]:
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
