"""Export the adapters of a run as files."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from polyloom.conditions import Condition
from polyloom.errors import ExportError, PolyloomError
from polyloom.evaluate.saved import read_stored
from polyloom.export.adapter import BACKBONE, backbone_note, generate_adapters, write_adapter
from polyloom.export.adapterhub import write_adapterhub
from polyloom.export.card import card
from polyloom.export.merged import write_merged
from polyloom.export.onnx import write_onnx
from polyloom.export.peft import write_peft
from polyloom.io.atomic import atomic_dir
from polyloom.io.machine_notes import last_name, local_name, note_folder
from polyloom.loading import LoadedModel

Format = Literal["polyloom", "adapterhub", "peft", "merged", "onnx", "onnx-baked"]


def export_run(  # noqa: PLR0913 - settings of an export
    run: LoadedModel,
    conditions: Sequence[Condition],
    into: Path,
    *,
    format: Format = "polyloom",  # noqa: A002 - as on the command line
    backbone: bool = False,
    base_name: str | None = None,
    progress: Callable[[Path], None] = lambda _: None,
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
    # Refuse before any weights are generated: for many conditions that takes minutes.
    if into.exists():
        raise ExportError(f"{into}: exists already. Choose another name or remove it.")
    model = run.model
    contains_backbone = backbone or format in ("merged", "onnx", "onnx-baked")
    if not contains_backbone and any("backbone" in stage.trains for stage in model.method.stages()):
        raise ExportError(
            f"{run.path}: {run.recipe.method.name} trained the whole backbone, so an adapter is of no use without it. "
            "Add --backbone, which writes it once beside the adapters."
        )
    for condition in conditions:
        model.task(condition.task)
        model.method.require_supported(condition)

    if format in ("onnx", "onnx-baked"):
        progress(write_onnx(model, conditions, into, baked=format == "onnx-baked"))
        return [into]

    facts, folders_written = gather_facts(run), list[Path]()
    several = backbone or len(conditions) > 1
    with atomic_dir(into) as partial:
        for adapter in generate_adapters(model, conditions, whole=not backbone):
            place = Path(*str(adapter.condition).split("/")) if several else Path()
            about = facts.about(adapter.condition)
            if backbone:  # it lies beside the adapters, so they name it by a relative path
                name = os.path.relpath(BACKBONE, place)
                about |= {"backbone": name, "settings": {"name": name, "dtype": facts.settings["dtype"]}}
            if base_name:
                about["backbone"] = base_name
            adapter, path = replace(adapter, about=about), partial / place  # noqa: PLW2901

            folders = [path]
            match format:
                case "polyloom":
                    write_adapter(adapter, path)
                case "adapterhub":
                    folders = write_adapterhub(adapter, model.backbone.shape, path)
                case "peft":
                    write_peft(adapter, model.backbone, path)
                case "merged":
                    write_merged(adapter, model.backbone, path)
                    run.tokenizer.save_pretrained(path)
            final = (into / place).name  # `path` is a temporary name
            names = [str(Path(final) / folder.relative_to(path)) for folder in folders]
            auto_class = model.backbone.family.auto_class
            text = card(adapter, file_format=format, path=final, folders=names, auto_class=auto_class)
            (path / "README.md").write_text(text, encoding="utf-8")
            folders_written.append(into / place)
        if backbone:
            model.backbone.model.save_pretrained(partial / BACKBONE)
            run.tokenizer.save_pretrained(partial / BACKBONE)
        elif folders_written:
            # Exports name local folders without their paths; this machine notes where they are, to find them again.
            # Before the export gets its name: if the process is killed in between, it could not be loaded.
            note_folder(backbone_note(adapter.identity), facts.backbone_folder)
            note_folder(facts.tokenizer, facts.tokenizer_folder)
    for path in folders_written:
        progress(path)
    return folders_written


@dataclass(frozen=True)
class RunFacts:
    """What exported adapters say about their run."""

    method: str
    """Name of the method."""
    backbone: str
    """Name of the backbone, without the path of a folder."""
    settings: Mapping[str, Any]
    """Settings of the backbone, likewise."""
    tokenizer: str
    """Identity of the tokenizer."""
    max_length: int
    """Number of tokens of the longest input."""
    licences: Mapping[str, str | None]
    """Licences of the training corpora; ``None`` where unknown."""
    scores: Mapping[Condition, Sequence[Mapping[str, Any]]]
    """Stored scores on the test data, by condition."""
    trained_on: Sequence[str]
    """Conditions with training data; the others are zero-shot."""
    backbone_folder: str
    """Name of the backbone as the recipe has it: of a local one, its path on this machine."""
    tokenizer_folder: str
    """The same of the tokenizer."""

    def about(self, condition: Condition) -> dict[str, Any]:
        """Return what the manifest and the card of a condition's adapter say."""
        return {
            "method": self.method, "backbone": self.backbone, "settings": self.settings, "tokenizer": self.tokenizer,
            "max_length": self.max_length, "licences": self.licences, "scores": self.scores.get(condition, []),
            "zero_shot": str(condition) not in self.trained_on,
        }  # fmt: skip


def gather_facts(run: LoadedModel) -> RunFacts:
    """Gather what the recipe, the corpora, the stored scores and the tokenizer say about a run."""
    recipe, licences, scores = run.recipe, dict[str, str | None](), dict[Condition, list[dict[str, Any]]]()

    # No path of this machine may be exported: folders and files are named without the folders that they are in.
    settings = {key: value for key, value in asdict(recipe.backbone).items() if value is not None}
    settings |= {key: local_name(settings[key]) for key in ("name", "tokenizer") if key in settings}
    for name in dict.fromkeys(name for names in recipe.data.train.values() for name in names):
        try:
            (corpus,) = run.resolve([name])
            licence = corpus.licence
        except PolyloomError:  # the corpus is not on this machine
            licence = None
        licences.setdefault(name if re.match(r"[a-z0-9-]+:", name) else name.rpartition("/")[2], licence)

    try:
        matrix = read_stored(run.path, "test", checkpoint=run.checkpoint.name)
    except PolyloomError:
        pass  # not evaluated, or not with this checkpoint
    else:
        for condition, result in matrix.results.items():
            scores[condition] = [
                {"metric": score.metric.name, "value": score.value, "signature": score.signature}
                for score in result.scores
            ]
    name = recipe.backbone.name or recipe.backbone.preset or ""
    return RunFacts(
        method=recipe.method.name, backbone=last_name(name), settings=settings, licences=licences, scores=scores,
        tokenizer=run.predictor.tokenizer.identity, max_length=run.predictor.max_length, trained_on=run.trained_on,
        backbone_folder=recipe.backbone.name or "",
        tokenizer_folder=recipe.backbone.tokenizer or recipe.backbone.name or "",
    )  # fmt: skip
