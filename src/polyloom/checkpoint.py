"""Write and read checkpoints: directories of safetensors and JSON with the trained parameters.

A checkpoint names its backbone by a hash. It is written under a temporary name, flushed to disk, and renamed, so that
it is never incomplete. The manifest holds the hashes of the other files and is sealed itself, so that a changed bit in
any of them is noticed. Manifests of format 1 are not sealed. Up to format 2 no method with adapters trained the
backbone's language-modelling head.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from polyloom.backbones import Backbone, check_identity, identity_of
from polyloom.errors import CheckpointError, ConditionError, ConfigError, DamagedError, DataError, suggest
from polyloom.io.atomic import atomic_dir
from polyloom.io.files import sha256_of
from polyloom.io.sealed import read_sealed, seal
from polyloom.io.untrusted import require_regular
from polyloom.methods import METHODS, MethodConfig, build_method
from polyloom.model import Model, inventory_of
from polyloom.registry import HINT
from polyloom.tasks import task_config
from polyloom.version import __version__

FORMAT = 3
UNSEALED = 1  # the format before manifests were sealed
FROZEN_HEAD = 2  # the last format before heads were trained
MANIFEST = "polyloom.json"
TENSORS = "weights.safetensors"
TRAINING = "training.safetensors"
_NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_FORMER_LORA = re.compile(r"\b(query|value)(?=_(?:down|up)\b)")  # names of 0.1.0.dev0: now q and v


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
    """Write a checkpoint.

    Args:
        path: A new directory.
        tensors: Trained parameters by name.
        manifest: Description of the model.
        training: Tensors and state that resuming the run needs.
        texts: Further text files by name.
    """
    with atomic_dir(path) as partial:
        _save(tensors, partial / TENSORS)
        written = dict(manifest) | {"format": FORMAT, "tensors_sha256": sha256_of(partial / TENSORS)}
        if training is not None:
            _save(training[0], partial / TRAINING)
            written["training"] = {"state": training[1], "tensors_sha256": sha256_of(partial / TRAINING)}
        for name, text in {**(texts or {}), MANIFEST: seal(json.dumps(written, indent=2) + "\n")}.items():
            (partial / name).write_text(text, encoding="utf-8")
    return path


def load_checkpoint(
    path: str | Path, backbone: Backbone, *, same_backbone: bool = True, tensors: Mapping[str, Tensor] | None = None
) -> Model:
    """Load a model.

    Args:
        path: A checkpoint.
        backbone: The backbone that it was trained on.
        same_backbone: Whether to check that it is the same backbone. Default: true; false if tokens were added to it.
        tensors: Its trained parameters, if they were read already.
    """
    path = Path(path)
    manifest, tensors = read_manifest(path), read_tensors(path) if tensors is None else tensors
    try:
        model = _build(manifest, backbone, path)
        if same_backbone:
            check_identity(manifest["backbone"], backbone_identity(model), str(path), name=backbone.name)
    except (KeyError, TypeError, ValueError, AttributeError, ConditionError, ConfigError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} is not as this version writes it: {error!r}") from error
    parameters = trained_parameters(model)
    if not same_backbone:
        tensors = {name: _with_added_tokens(tensor, parameters.get(name)) for name, tensor in tensors.items()}
    load_tensors_into(parameters, tensors, path / TENSORS)
    return model


def _with_added_tokens(tensor: Tensor, parameter: nn.Parameter | None) -> Tensor:
    """Append what a parameter has for tokens that were added, such as the bias of the language-modelling head."""
    if parameter is None or parameter.shape[1:] != tensor.shape[1:]:
        return tensor
    return torch.cat([tensor, parameter.detach()[len(tensor) :]])


def read_tensors(path: Path, *, finite: bool = True) -> dict[str, Tensor]:
    """Read the trained parameters of a checkpoint; with `finite`, raise an error if one is not of finite numbers."""
    tensors = _tensors(path / TENSORS, read_manifest(path).get("tensors_sha256"))
    for name, tensor in tensors.items() if finite else ():
        if tensor.dtype not in _NUMBERS:
            raise DamagedError(f"{path / TENSORS}: {name} is of type {tensor.dtype}, not of floating-point numbers.")
        if tensor.numel() and not all(bound.isfinite() for bound in tensor.aminmax()):  # bounds of NaN are NaN
            raise DamagedError(f"{path / TENSORS}: {name} has values that are NaN or infinite.")
    return tensors


def read_training(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the state that resuming a run needs."""
    training = read_manifest(path).get("training")
    if not isinstance(training, dict):
        raise CheckpointError(f"{path}: a finished model, not a checkpoint of a run: it has no {TRAINING}.")
    return _tensors(path / TRAINING, training.get("tensors_sha256")), training["state"]


def trained_parameters(model: Model) -> dict[str, nn.Parameter]:
    """Return the parameters of a checkpoint: of the method, of the heads, and the trained ones of the backbone."""
    groups = {group for stage in model.method.stages() for group in stage.trains}
    parameters = {f"method.{name}": parameter for name, parameter in model.method.named_parameters()}
    parameters |= {f"heads.{name}": parameter for name, parameter in model.heads.named_parameters()}
    trained = {p for group, members in model.groups().items() if group in groups for p in members}
    backbone = model.backbone.model.named_parameters()
    return parameters | {f"backbone.{name}": parameter for name, parameter in backbone if parameter in trained}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint."""
    file = path / MANIFEST
    try:
        text, sealed = read_sealed(file)
        manifest = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{file}: not a readable checkpoint: {error}") from error
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(number, int):
        raise CheckpointError(f"{file}: not the manifest of a checkpoint: it names no format.")
    if not UNSEALED <= number <= FORMAT:
        raise CheckpointError(
            f"{file}: of format {number}, written by Polyloom {manifest.get('polyloom')}. This version reads formats "
            f"{UNSEALED} to {FORMAT}. Update Polyloom."
        )
    if not sealed and number != UNSEALED:
        raise DamagedError(f"{file}: damaged: its first line has no SHA-256.")
    return dict(manifest)


def _tensors(file: Path, digest: object) -> dict[str, Tensor]:
    try:
        require_regular(file)
        actual = sha256_of(file)
        tensors = load_file(file)
    except (OSError, ValueError, SafetensorError, DataError) as error:
        raise DamagedError(f"{file}: not a readable checkpoint: {error}") from error
    if actual != digest:
        raise DamagedError(f"{file}: does not match its manifest. The copy is damaged or mixed up.")
    return {_FORMER_LORA.sub(lambda name: name[1][0], name): tensor for name, tensor in tensors.items()}


def describe_model(model: Model) -> dict[str, Any]:
    """Describe a model, except its backbone, so that it can be built again."""
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
    """Identify the backbone of a model by all that decides its output, except the parameters of its checkpoints."""
    names = (name for name in trained_parameters(model) if name.startswith("backbone."))
    return identity_of(model.backbone, skip={name.removeprefix("backbone.") for name in names})


def _build(manifest: dict[str, Any], backbone: Backbone, path: Path) -> Model:
    settings = dict(manifest["method"])
    name = settings.pop("name")
    if name not in METHODS:
        raise CheckpointError(f"{path}: unknown method {name!r}. {suggest(name, METHODS)} {HINT}")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    if manifest["format"] <= FROZEN_HEAD:
        settings = _upgrade(settings, METHODS[name].config_type)
    more = manifest.get("task_settings", {})  # absent where all are the defaults
    configs = {task: task_config(task, labels, more.get(task)) for task, labels in manifest["tasks"].items()}
    inventory = inventory_of(manifest["languages"], configs, manifest["directions"])
    method = build_method(METHODS[name].config_type(**settings), shape=backbone.shape, inventory=inventory)
    # A number of labels stands for a task without a head.
    return Model(backbone, method, tasks={t: c for t, c in configs.items() if not isinstance(c.labels, int)})


def _upgrade(settings: dict[str, Any], config_type: type[MethodConfig]) -> dict[str, Any]:
    """Turn the settings of a method of format 2 into those of today."""
    if "train_head" in {field.name for field in fields(config_type)}:
        settings = {"train_head": False} | settings
    if isinstance(settings.get("norm"), bool):
        settings["norm"] = "before" if settings["norm"] else "none"
    return settings


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
