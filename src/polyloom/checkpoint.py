"""Checkpoints: a directory of safetensors and JSON with what was trained, bound to its backbone by a hash.

Written under a temporary name, flushed to disk, and renamed, so that a checkpoint is there whole or not at all.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from polyloom.backbones import Backbone
from polyloom.errors import CheckpointError, ConditionError, ConfigError, suggest
from polyloom.methods import METHODS
from polyloom.model import Model

FORMAT = 1
MANIFEST = "polyloom.json"
TENSORS = "weights.safetensors"


def save_checkpoint(model: Model, path: str | Path) -> Path:
    """Write a model's trained parts to a new directory."""
    path = Path(path)
    if path.exists():
        raise CheckpointError(f"{path}: exists already. Choose another name or remove it.")
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        tensors = {name: parameter.detach().contiguous() for name, parameter in trained_parameters(model).items()}
        save_file(tensors, partial / TENSORS)
        (partial / MANIFEST).write_text(json.dumps(_manifest(model, partial / TENSORS), indent=2) + "\n")
        for file in (partial / TENSORS, partial / MANIFEST, partial):
            _flush(file)
        partial.rename(path)
        _flush(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def load_checkpoint(path: str | Path, backbone: Backbone) -> Model:
    """Rebuild a model on the backbone it was trained on."""
    path = Path(path)
    manifest, tensors = _read(path)
    try:
        model = _build(manifest, backbone, path)
        _check_backbone(model, manifest["backbone"], path)
    except (KeyError, TypeError, ValueError, AttributeError, ConditionError, ConfigError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} is not as this version writes it: {error!r}") from error
    _fill(trained_parameters(model), tensors, path)
    return model


def trained_parameters(model: Model) -> dict[str, nn.Parameter]:
    """What a checkpoint holds: the method, and the backbone's parameters that any of its stages trains."""
    groups = {group for stage in model.method.stages() for group in stage.trains}
    ours = {f"method.{name}": parameter for name, parameter in model.method.named_parameters()}
    if "backbone" in groups:
        theirs = dict(model.backbone.model.named_parameters())
    elif "backbone.norms" in groups:
        theirs = model.backbone.norm_parameters()
    else:
        theirs = {}
    return ours | {f"backbone.{name}": parameter for name, parameter in theirs.items()}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        digest = _sha256(path / TENSORS)
        tensors = load_file(path / TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not of format {FORMAT}, the one that this version reads.")
    if digest != manifest.get("tensors_sha256"):
        raise CheckpointError(f"{path}: {TENSORS} does not match its manifest. The copy is damaged or mixed up.")
    return manifest, tensors


def _manifest(model: Model, tensors: Path) -> dict[str, Any]:
    world = model.method.world()
    return {
        "format": FORMAT,
        "polyloom": version("polyloom"),
        "method": {"name": model.method.config.name} | asdict(model.method.config),
        "languages": world.languages,
        "tasks": world.tasks,
        "directions": world.directions,
        "backbone": _identity(model),
        "tensors_sha256": _sha256(tensors),
    }


def _identity(model: Model) -> dict[str, str]:
    skip = {name.removeprefix("backbone.") for name in trained_parameters(model) if name.startswith("backbone.")}
    return {"model_type": model.backbone.shape.family, "frozen_sha256": model.backbone.fingerprint(skip=skip)}


def _build(manifest: dict[str, Any], backbone: Backbone, path: Path) -> Model:
    settings = dict(manifest["method"])
    name = settings.pop("name")
    if name not in METHODS:
        raise CheckpointError(f"{path}: unknown method {name!r}. {suggest(name, METHODS)}")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return Model(
        backbone,
        METHODS[name].config_type(**settings),
        languages=manifest["languages"],
        tasks=manifest["tasks"],
        directions=manifest["directions"],
    )


def _check_backbone(model: Model, stored: dict[str, str], path: Path) -> None:
    if _identity(model) != stored:
        raise CheckpointError(
            f"{path}: was trained on another backbone (a {stored['model_type']} with hash "
            f"{stored['frozen_sha256'][:12]}). Load exactly that one; a different one would answer, but wrongly."
        )


@torch.no_grad()
def _fill(parameters: dict[str, nn.Parameter], tensors: dict[str, torch.Tensor], path: Path) -> None:
    wrong = sorted(parameters.keys() ^ tensors.keys())
    wrong += [name for name in parameters.keys() & tensors.keys() if parameters[name].shape != tensors[name].shape]
    if wrong:
        raise CheckpointError(f"{path}: tensors missing, unknown or of another shape: {', '.join(wrong[:8])}.")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
