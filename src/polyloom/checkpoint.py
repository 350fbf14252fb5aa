"""Checkpoints: a directory of safetensors and JSON with what was trained, bound to its backbone by a hash.

Written under a temporary name, flushed to disk, and renamed, so that a checkpoint is there whole or not at all.
"""

import json
import shutil
from collections.abc import Container, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polyloom.backbones import Backbone
from polyloom.errors import CheckpointError, ConditionError, ConfigError, suggest
from polyloom.io.files import PARTIAL, new_folder, sha256_of
from polyloom.methods import METHODS
from polyloom.model import Model
from polyloom.tasks import task_config
from polyloom.version import __version__

FORMAT = 1
MANIFEST = "polyloom.json"
TENSORS = "weights.safetensors"
TRAINING = "training.safetensors"


def save_checkpoint(model: Model, path: str | Path) -> Path:
    """Write a model's trained parts to a new directory."""
    path = Path(path)
    if path.exists():
        raise CheckpointError(f"{path}: exists already. Choose another name or remove it.")
    tensors: dict[str, Tensor] = dict(trained_parameters(model))
    return write_checkpoint(path, tensors, describe_model(model) | {"backbone": backbone_identity(model)})


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    *,
    training: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Write tensors with their manifest; if wanted, also what a run needs to go on, and texts."""
    with new_folder(path) as partial:
        _save(tensors, partial / TENSORS)
        written = dict(manifest) | {"tensors_sha256": sha256_of(partial / TENSORS)}
        if training is not None:
            _save(training[0], partial / TRAINING)
            written["training"] = {"state": training[1], "tensors_sha256": sha256_of(partial / TRAINING)}
        for name, text in {**(texts or {}), MANIFEST: json.dumps(written, indent=2) + "\n"}.items():
            (partial / name).write_text(text, encoding="utf-8")
    return path


def clean_up(folder: Path) -> None:
    """Remove what a process that was killed while writing left behind."""
    for partial in folder.glob(f".*{PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)


def load_checkpoint(path: str | Path, backbone: Backbone, *, same_backbone: bool = True) -> Model:
    """Rebuild a model on the backbone it was trained on; or, not the `same_backbone`, on one made from it."""
    path = Path(path)
    manifest = read_manifest(path)
    tensors = _tensors(path / TENSORS, manifest.get("tensors_sha256"))
    try:
        model = _build(manifest, backbone, path)
        if same_backbone:
            _check_backbone(model, manifest["backbone"], path)
    except (KeyError, TypeError, ValueError, AttributeError, ConditionError, ConfigError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} is not as this version writes it: {error!r}") from error
    load_tensors_into(trained_parameters(model), tensors, path)
    return model


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What was trained, by name."""
    return _tensors(path / TENSORS, read_manifest(path).get("tensors_sha256"))


def read_training(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a run needs to go on from a checkpoint: tensors and state."""
    training = read_manifest(path).get("training")
    if not isinstance(training, dict):
        raise CheckpointError(f"{path}: a finished model, not a checkpoint of a run: it has no {TRAINING}.")
    return _tensors(path / TRAINING, training.get("tensors_sha256")), training["state"]


def trained_parameters(model: Model) -> dict[str, nn.Parameter]:
    """What a checkpoint holds: the method, the heads, and the backbone's parameters that any of its stages trains."""
    groups = {group for stage in model.method.stages() for group in stage.trains}
    ours = {f"method.{name}": parameter for name, parameter in model.method.named_parameters()}
    ours |= {f"heads.{name}": parameter for name, parameter in model.heads.named_parameters()}
    if "backbone" in groups:
        theirs = dict(model.backbone.model.named_parameters())
    elif "backbone.norms" in groups:
        theirs = model.backbone.norm_parameters()
    else:
        theirs = {}
    return ours | {f"backbone.{name}": parameter for name, parameter in theirs.items()}


def read_manifest(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not of format {FORMAT}, the one that this version reads.")
    return manifest


def _tensors(file: Path, digest: object) -> dict[str, Tensor]:
    try:
        found = sha256_of(file)
        tensors = load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{file.parent}: not a readable checkpoint: {error}") from error
    if found != digest:
        raise CheckpointError(f"{file}: does not match its manifest. The copy is damaged or mixed up.")
    return tensors


def describe_model(model: Model) -> dict[str, Any]:
    """What must be known to build a model again, but for its backbone."""
    inventory = model.method.inventory()
    labels = {name: list(task.labels) for name, task in model.tasks.items() if task.needs_labels}
    settings = {name: settings for name, task in model.tasks.items() if (settings := task.settings())}
    return {
        "format": FORMAT,
        "polyloom": __version__,
        "method": {"name": model.method.config.name} | asdict(model.method.config),
        "languages": inventory.languages,
        "tasks": dict(inventory.tasks) | labels,
        "directions": inventory.directions,
        **({"task_settings": settings} if settings else {}),
    }


def backbone_identity(model: Model) -> dict[str, str]:
    """Which backbone a model needs: its type, and a hash of all in it that is never trained."""
    names = (name for name in trained_parameters(model) if name.startswith("backbone."))
    return backbone_fingerprint(model.backbone, {name.removeprefix("backbone.") for name in names})


def backbone_fingerprint(backbone: Backbone, skip: Container[str]) -> dict[str, str]:
    """Which backbone this is, but for parameters that come from elsewhere."""
    return {"model_type": backbone.shape.family, "frozen_sha256": backbone.fingerprint(skip=skip)}


def _build(manifest: dict[str, Any], backbone: Backbone, path: Path) -> Model:
    settings = dict(manifest["method"])
    name = settings.pop("name")
    if name not in METHODS:
        raise CheckpointError(f"{path}: unknown method {name!r}. {suggest(name, METHODS)}")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    more = manifest.get("task_settings", {})  # absent where all are the defaults
    return Model(
        backbone,
        METHODS[name].config_type(**settings),
        languages=manifest["languages"],
        tasks={task: task_config(task, labels, more.get(task)) for task, labels in manifest["tasks"].items()},
        directions=manifest["directions"],
    )


def _check_backbone(model: Model, stored: dict[str, str], path: Path) -> None:
    if backbone_identity(model) != stored:
        raise CheckpointError(
            f"{path}: was trained on another backbone (a {stored['model_type']} with hash "
            f"{stored['frozen_sha256'][:12]}). Load exactly that one; a different one would answer, but wrongly."
        )


@torch.no_grad()
def load_tensors_into(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors into parameters of the same names and shapes."""
    wrong = sorted(parameters.keys() ^ tensors.keys())
    wrong += [name for name in parameters.keys() & tensors.keys() if parameters[name].shape != tensors[name].shape]
    if wrong:
        raise CheckpointError(f"{path}: tensors missing, unknown or of another shape: {', '.join(wrong[:8])}.")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def _save(tensors: Mapping[str, Tensor], file: Path) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(plain, file)
    except SafetensorError as error:  # such as a full disk, which is an OSError everywhere else
        raise OSError(str(error)) from error
