"""Write and read checkpoints: directories of safetensors and JSON with the trained parameters.

A checkpoint names its backbone by a hash. It is written under a temporary name, flushed to disk, and renamed, so that
it is never incomplete. The manifest holds the hashes of the other files and is sealed itself, so that a changed bit in
any of them is noticed. The rows of large banks are in files of their own (`tensor_files`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from polyloom.backbones import Backbone, check_identity, identity_of
from polyloom.errors import CheckpointError, ConditionError, ConfigError, DamagedError, suggest
from polyloom.io.atomic import atomic_dir
from polyloom.io.sealed import read_sealed, seal
from polyloom.methods import METHODS, build_method
from polyloom.model import Model, inventory_of
from polyloom.registry import HINT
from polyloom.tasks import task_config
from polyloom.tensor_files import (
    Entry,
    StoredBank,
    folder_of,
    join,
    list_files,
    load_tensors,
    save_banks,
    save_tensors,
)
from polyloom.version import __version__

FORMAT = 1  # of checkpoints and adapters; raise it when other versions would misread them
MANIFEST = "polyloom.json"
TENSORS = "weights.safetensors"
TRAINING = "training.safetensors"
Parts = Mapping[str, Sequence[Tensor]]  # tensors by name, each in parts whose rows follow each other
_BANKS = "banks"  # in a manifest: the files of large banks
_NUMBERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class PreviousCheckpoint(NamedTuple):
    """The checkpoint that this process wrote last, whose files a new one can link."""

    path: Path
    """Its directory, which need not exist any more."""
    same_optimizer: bool = True
    """Whether its training state is of the same optimizer. That of an earlier stage is not, although no row changed."""


def save_checkpoint(model: Model, path: str | Path) -> Path:
    """Write a model's trained parts to a new directory."""
    path = Path(path)
    if path.exists():
        raise CheckpointError(f"{path}: exists already. Choose another name or remove it.")
    tensors: dict[str, Tensor] = dict(trained_parameters(model))
    return write_checkpoint(path, tensors, describe_model(model) | {"backbone": backbone_identity(model)})


def write_checkpoint(  # noqa: PLR0913 - all are needed
    path: Path,
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    *,
    training: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,
    texts: Mapping[str, str] | None = None,
    banks: Sequence[StoredBank] = (),
    previous: PreviousCheckpoint | None = None,
) -> Path:
    """Write a checkpoint.

    Args:
        path: A new directory.
        tensors: Trained parameters by name.
        manifest: Description of the model.
        training: Tensors and state that resuming the run needs.
        texts: Further text files by name.
        banks: Banks whose rows get files of their own if they are large.
        previous: A checkpoint whose files are linked where the rows of a bank did not change since.
    """
    large = [(bank, count) for bank in banks if (count := bank.rows_per_file(tensors))]
    previous_weights: Sequence[Entry] = ()
    previous_training: Sequence[Entry] = ()
    if large and previous is not None:
        with suppress(CheckpointError):  # it was removed; then all is written from memory
            previous_manifest = read_manifest(previous.path)
            previous_weights = previous_manifest.get(_BANKS, ())
            if previous.same_optimizer:
                previous_training = previous_manifest["training"].get(_BANKS, ())

    def save(tensors: Mapping[str, Tensor], name: str, previous_entries: Sequence[Entry]) -> dict[str, Any]:
        """Write tensors into a file of `partial`, and those of large banks into a folder; return the hashes."""
        remaining = dict(tensors)
        linked = previous and (folder_of(previous.path / name), previous_entries)
        entries = save_banks(remaining, large, folder_of(partial / name), previous=linked)
        return {"tensors_sha256": save_tensors(remaining, partial / name)} | ({_BANKS: entries} if entries else {})

    with atomic_dir(path) as partial:
        content = {"format": FORMAT} | {key: value for key, value in manifest.items() if key != _BANKS}
        content |= save(tensors, TENSORS, previous_weights)
        if training is not None:
            content["training"] = {"state": training[1]} | save(training[0], TRAINING, previous_training)
        for name, text in {**(texts or {}), MANIFEST: seal(json.dumps(content, indent=2) + "\n")}.items():
            (partial / name).write_text(text, encoding="utf-8")
    return path


def load_checkpoint(
    path: str | Path,
    backbone: Backbone,
    *,
    same_backbone: bool = True,
    parts: Parts | None = None,
) -> Model:
    """Load a model.

    Args:
        path: A checkpoint.
        backbone: The backbone that it was trained on.
        same_backbone: Whether to check that it is the same backbone. Default: true; false if tokens were added to it.
        parts: Its trained parameters, if they were read already.
    """
    path = Path(path)
    manifest, parts = read_manifest(path), read_parts(path) if parts is None else parts
    try:
        model = _build(manifest, backbone, path)
        if same_backbone:
            check_identity(manifest["backbone"], backbone_identity(model), str(path), name=backbone.name)
    except (KeyError, TypeError, ValueError, AttributeError, ConditionError, ConfigError) as error:
        raise CheckpointError(f"{path}: {MANIFEST} is not as this version writes it: {error!r}") from error
    parameters = trained_parameters(model)
    if not same_backbone:
        # Tokens were added to the backbone, so some parameters, such as the bias of the language-modelling head, have
        # rows that the checkpoint does not have. These keep what the model has.
        extended = dict(parts)
        for name, stored in parts.items():
            parameter = parameters.get(name)
            if parameter is not None and parameter.dim() and parameter.shape[1:] == stored[0].shape[1:]:
                extended[name] = [*stored, parameter.detach()[sum(map(len, stored)) :]]
        parts = extended
    load_parts_into(parameters, parts, path / TENSORS)
    return model


def read_tensors(path: Path, *, finite: bool = True) -> dict[str, Tensor]:
    """Read the trained parameters of a checkpoint; with `finite`, raise an error if one is not of finite numbers."""
    return join(read_parts(path, finite=finite))


def read_parts(path: Path, *, finite: bool = True) -> dict[str, list[Tensor]]:
    """Read the trained parameters of a checkpoint in parts, as they are in its files; their rows follow each other.

    Parts are views of the files, so that a large bank need not fit into memory a second time.
    """
    return _read(path / TENSORS, read_manifest(path), finite=finite)


def read_training(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the state that resuming a run needs."""
    training = read_manifest(path).get("training")
    if not isinstance(training, dict):
        raise CheckpointError(f"{path}: a finished model, not a checkpoint of a run: it has no {TRAINING}.")
    return join(_read(path / TRAINING, training, finite=False)), training["state"]


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
        manifest = json.loads(read_sealed(file))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{file}: not a readable checkpoint: {error}") from error
    number = manifest.get("format") if isinstance(manifest, dict) else None
    if not isinstance(number, int):
        raise CheckpointError(f"{file}: not the manifest of a checkpoint: it names no format.")
    if number != FORMAT:
        raise CheckpointError(
            f"{file}: of format {number}, written by Polyloom {manifest.get('polyloom')}. This version reads format "
            f"{FORMAT}. Update Polyloom."
        )
    return dict(manifest)


def _read(file: Path, manifest: Mapping[str, Any], *, finite: bool) -> dict[str, list[Tensor]]:
    """Read the parts of all tensors, from a file and the files of large banks that belong to it."""
    parts: dict[str, list[Tensor]] = {}
    for place, digest in list_files(file, manifest.get("tensors_sha256"), manifest.get(_BANKS)):
        for name, tensor in load_tensors(place, digest).items():
            if finite and tensor.dtype not in _NUMBERS:
                raise DamagedError(f"{place}: {name} is of type {tensor.dtype}, not of floating-point numbers.")
            # The bounds of a tensor with NaN are NaN. They take no memory, as a mask of all values would.
            if finite and tensor.numel() and not all(bound.isfinite() for bound in tensor.aminmax()):
                raise DamagedError(f"{place}: {name} has values that are NaN or infinite.")
            first = parts.setdefault(name, [tensor])[0]
            if first is not tensor:
                if first.dtype != tensor.dtype or not tensor.dim() or first.shape[1:] != tensor.shape[1:]:
                    raise DamagedError(f"{place}: {name} does not continue the tensor of this name in other files.")
                parts[name].append(tensor)
    return parts


def describe_model(model: Model) -> dict[str, Any]:
    """Describe a model, except its backbone, so that it can be built again."""
    inventory = model.method.inventory()
    labels = {name: list(task.labels) for name, task in model.tasks.items() if task.needs_labels}
    settings = {name: settings for name, task in model.tasks.items() if (settings := task.settings())}
    return {
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
    """Build the model that a manifest describes, without the trained values of its parameters."""
    settings = dict(manifest["method"])
    name = settings.pop("name")
    if name not in METHODS:
        raise CheckpointError(f"{path}: unknown method {name!r}. {suggest(name, METHODS)} {HINT}")
    # JSON has lists where settings are tuples.
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    more = manifest.get("task_settings", {})  # absent where all are the defaults
    configs = {task: task_config(task, labels, more.get(task)) for task, labels in manifest["tasks"].items()}
    inventory = inventory_of(manifest["languages"], configs, manifest["directions"])
    method = build_method(METHODS[name].config_type(**settings), shape=backbone.shape, inventory=inventory)
    # A number of labels stands for a task without a head.
    return Model(backbone, method, tasks={t: c for t, c in configs.items() if not isinstance(c.labels, int)})


def load_tensors_into(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors into parameters of the same names and shapes."""
    load_parts_into(parameters, {name: [tensor] for name, tensor in tensors.items()}, path)


@torch.no_grad()
def load_parts_into(parameters: Mapping[str, nn.Parameter], parts: Parts, path: Path) -> None:
    """Copy tensors, which are in parts, into parameters of the same names and shapes."""
    wrong = sorted(parameters.keys() ^ parts.keys())
    wrong += [name for name in parameters.keys() & parts.keys() if parameters[name].shape != _shape(parts[name])]
    if wrong:
        raise CheckpointError(f"{path}: tensors missing, unknown or of another shape: {', '.join(wrong[:8])}.")
    for name, parameter in parameters.items():
        if len(parts[name]) == 1:
            parameter.copy_(parts[name][0])
        else:
            # Into views of the parameter: joined first, the parts would be a second copy of a large bank.
            for part, rows in zip(parts[name], torch.split(parameter, list(map(len, parts[name]))), strict=True):
                rows.copy_(part)


def _shape(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the shape of a tensor in parts. A scalar has no rows, and is always one part."""
    first = parts[0]
    return tuple(first.shape) if len(parts) == 1 else (sum(map(len, parts)), *first.shape[1:])
