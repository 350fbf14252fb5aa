"""One condition's adapter as an ordinary thing: weights, head, and what else the backbone needs; in memory and on disk.

Whatever method made it, it is a directory of safetensors and JSON, and answers without that method bit for bit as with
it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyloom.backbones import Backbone
from polyloom.checkpoint import (
    FORMAT,
    backbone_fingerprint,
    load_tensors_into,
    read_manifest,
    read_tensors,
    trained_parameters,
    write_checkpoint,
)
from polyloom.conditions import Condition
from polyloom.errors import CheckpointError, ConditionError
from polyloom.export.layout import check_block
from polyloom.methods.exported import ExportedAdapters
from polyloom.model import Model
from polyloom.nn.blocks import BLOCKS
from polyloom.tasks import task_config
from polyloom.version import __version__
from polyloom.weights import Block, Site, Weights


@dataclass(frozen=True)
class Adapter:
    """What a backbone needs to answer under one condition.

    Attributes:
        condition: The task and the languages.
        weights: Of this condition alone.
        labels: Of the task, in the order of its head's outputs; none where it has none.
        head: Parameters of the task's head, by their names there.
        backbone: Parameters of the backbone that were trained, by their names there.
        identity: Type of the backbone, and a hash of all in it that was not trained.
        about: What a person or a program wants to know beside: where it comes from, scores, licences.
        settings: Settings of the task that differ from its defaults, as plain data.
    """

    condition: Condition
    weights: Weights
    labels: tuple[str, ...] = ()
    head: Mapping[str, Tensor] = field(default_factory=dict)
    backbone: Mapping[str, Tensor] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by the names that they have on disk."""
        blocks = {f"block.{i}.{name}": t[0] for i, b in enumerate(self.weights.blocks) for name, t in b.tensors.items()}
        heads = {f"head.{name}": tensor for name, tensor in self.head.items()}
        return blocks | heads | {f"backbone.{name}": tensor for name, tensor in self.backbone.items()}


def generate_adapters(model: Model, conditions: Iterable[Condition], *, whole: bool = True) -> Iterator[Adapter]:
    """Make the weights of conditions once and for all.

    One condition at a time: made together, weights can differ from those made alone in their last bit.

    Args:
        model: With a method that makes weights.
        conditions: For which.
        whole: Whether adapters bring what was trained in the backbone; otherwise they are for the one as it is now.
    """
    every = trained_parameters(model) if whole else {}
    trained = {name.removeprefix("backbone."): p for name, p in every.items() if name.startswith("backbone.")}
    identity = backbone_fingerprint(model.backbone, trained)
    for condition in conditions:
        task = model.tasks.get(condition.task)
        with torch.no_grad():
            weights = model.method.weights([condition])
        labels, head = (task.labels, dict(task.named_parameters())) if task else ((), {})
        yield Adapter(condition, weights, labels, head, trained, identity, settings=task.settings() if task else {})


def load_adapters_into(adapters: Sequence[Adapter], backbone: Backbone, place: str = "adapter") -> Model:
    """A model that answers under the conditions of some adapters; trained parts of the backbone are put into it."""
    first, by_task = adapters[0], dict[str, Adapter]()
    for adapter in adapters:
        for block in adapter.weights.blocks:
            check_block(block, backbone.shape, place)
        if not _same(adapter.backbone, first.backbone):
            raise CheckpointError(
                f"{place}: adapters that change the backbone in different ways. Load them one by one."
            )
        other = by_task.setdefault(adapter.condition.task, adapter)
        same = adapter.labels == other.labels and adapter.settings == other.settings
        if not same or not _same(adapter.head, other.head):
            raise CheckpointError(f"{place}: different heads for {adapter.condition.task}. Load them one by one.")
    method = ExportedAdapters(
        {adapter.condition: adapter.weights for adapter in adapters},
        shape=backbone.shape,
        labels={task: len(adapter.labels) or None for task, adapter in by_task.items()},
    )
    try:
        tasks = {task: task_config(task, adapter.labels, adapter.settings) for task, adapter in by_task.items()}
    except TypeError as error:
        raise CheckpointError(f"{place}: settings of a task that this version does not know: {error}") from error
    model = Model(backbone, method, languages=method.languages, tasks=tasks)
    theirs = dict(backbone.model.named_parameters())
    load_tensors_into({name: theirs[name] for name in first.backbone if name in theirs}, first.backbone, Path(place))
    _check_identity(backbone, first, place)
    for task, adapter in by_task.items():
        own = dict(model.tasks[task].named_parameters()) if task in model.tasks else {}
        load_tensors_into(own, adapter.head, Path(place))
    return model.eval()


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def _check_identity(backbone: Backbone, adapter: Adapter, place: str) -> None:
    if backbone_fingerprint(backbone, adapter.backbone) != dict(adapter.identity):
        raise CheckpointError(
            f"{place}: is for another backbone (a {adapter.identity.get('model_type')} with hash "
            f"{str(adapter.identity.get('frozen_sha256'))[:12]}). Load exactly that one; a different one would answer, "
            "but wrongly."
        )


# -- on disk ----------------------------------------------------------------------------------------------------------


def write_adapter(adapter: Adapter, path: Path, *, card: str = "") -> Path:
    """Write an adapter to a new directory, there whole or not at all."""
    if path.exists():
        raise CheckpointError(f"{path}: exists already. Choose another name or remove it.")
    described = {
        "condition": str(adapter.condition),
        "blocks": [
            {"kind": block.kind, "placement": block.placement, "sites": [str(site) for site in block.sites]}
            for block in adapter.weights.blocks
        ],
        "labels": list(adapter.labels),
        **({"settings": dict(adapter.settings)} if adapter.settings else {}),
    }
    manifest = {"format": FORMAT, "polyloom": __version__, "adapter": described, "backbone": dict(adapter.identity)}
    return write_checkpoint(
        path, adapter.tensors(), manifest | {"about": dict(adapter.about)}, texts={"README.md": card} if card else {}
    )


def read_adapter(path: Path) -> Adapter:
    """Read what `write_adapter` wrote; anything else is refused."""
    manifest, tensors = read_manifest(path), read_tensors(path)
    try:
        described = manifest["adapter"]
        blocks = [_block(number, block, tensors) for number, block in enumerate(described["blocks"])]
        adapter = Adapter(
            Condition.parse(described["condition"]),
            Weights(tuple(blocks)),
            labels=_strings(described["labels"]),
            head=_under("head.", tensors),
            backbone=_under("backbone.", tensors),
            identity={str(key): str(value) for key, value in manifest["backbone"].items()},
            about=dict(manifest.get("about") or {}),
            settings=dict(described.get("settings") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConditionError) as error:
        raise CheckpointError(f"{path}: not an adapter as this version writes it: {error!r}") from error
    if left := sorted(tensors.keys() - adapter.tensors().keys()):
        raise CheckpointError(f"{path}: tensors that belong to nothing: {', '.join(left[:8])}.")
    kinds = {f"block.{i}.{name}": block.kind for i, block in enumerate(blocks) for name in block.tensors}
    for name, tensor in tensors.items():
        kind = BLOCKS.get(kinds.get(name, ""))
        finite = kind.finite(name.split(".", 2)[2], tensor) if kind else bool(tensor.isfinite().all())
        if tensor.dtype != torch.float32 or not finite:
            raise CheckpointError(f"{path}: {name} is not of finite 32-bit numbers.")
    return adapter


def _block(number: int, described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Block:
    own = {name: tensor[None] for name, tensor in _under(f"block.{number}.", tensors).items()}
    sites = []
    for text in _strings(described["sites"]):
        stack, _, layer = text.partition(".")
        if not (layer.isascii() and layer.isdecimal() and len(layer) < 6):
            raise ValueError(f"{text!r} is not a site")
        sites.append(Site(stack, int(layer)))
    if not own or any(t.dim() < 2 or t.shape[1] != len(sites) for t in own.values()):
        raise ValueError(f"block {number} has no tensors, or not one for every site")
    return Block(str(described["kind"]), str(described["placement"]), tuple(sites), own)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{value!r} is not a list of names")
    return tuple(value)
