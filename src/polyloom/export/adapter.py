"""The exported adapter of one condition, in memory and on disk: weights, head, and trained parts of the backbone.

On disk it is a directory of safetensors and JSON. It does not need the method that generated it, and its predictions
are bitwise the same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyloom.backbones import Backbone, check_identity, identity_of
from polyloom.checkpoint import (
    TENSORS,
    load_tensors_into,
    read_manifest,
    read_tensors,
    trained_parameters,
    write_checkpoint,
)
from polyloom.conditions import Condition
from polyloom.errors import CheckpointError, ConditionError, ExportError, suggest
from polyloom.inference.cache import eval_mode
from polyloom.io.atomic import is_taken
from polyloom.methods.exported import ExportedAdapters
from polyloom.model import Model
from polyloom.nn.blocks import BLOCKS, shapes_of
from polyloom.registry import HINT
from polyloom.tasks import Task, find_task, task_config
from polyloom.version import __version__
from polyloom.weights import BackboneShape, Block, Shapes, Site, Weights

BACKBONE = "backbone"  # directory of the backbone, beside the adapters


@dataclass(frozen=True)
class Adapter:
    """An exported adapter: all that a backbone needs to predict under one condition.

    Attributes:
        condition: The task and the languages.
        weights: The weights of this condition.
        labels: Labels of the task, in the order of the head's outputs. Default: none.
        head: Parameters of the task's head, by name.
        backbone: Trained parameters of the backbone, by name.
        identity: Type of the backbone, and hashes of all that decides its output, except the trained parameters.
        about: Information for people and programs: origin, scores, licences.
        settings: Settings of the task that differ from its defaults, as plain data.
        needs_trained_backbone: Whether its output depends on trained parameters of the backbone. A trained
            language-modelling head matters only to tasks that use it.
    """

    condition: Condition
    weights: Weights
    labels: tuple[str, ...] = ()
    head: Mapping[str, Tensor] = field(default_factory=dict)
    backbone: Mapping[str, Tensor] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs_trained_backbone: bool = False

    @property
    def task(self) -> type[Task]:
        """The class of its task."""
        return find_task(self.condition.task)

    def require_frozen_backbone(self, file_format: str) -> None:
        """Raise an error if the adapter predicts wrongly without parameters that are outside of it."""
        if self.needs_trained_backbone:
            raise ExportError(
                f"{file_format}: {self.about.get('method', 'the method')} also trained parts of the backbone, such as "
                f"{next(iter(self.backbone))}, which this format cannot hold. Add --backbone: it also writes the "
                "trained backbone, which the adapters then fit."
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, by their names on disk."""
        blocks = {f"block.{i}.{name}": t[0] for i, b in enumerate(self.weights.blocks) for name, t in b.tensors.items()}
        heads = {f"head.{name}": tensor for name, tensor in self.head.items()}
        return blocks | heads | {f"backbone.{name}": tensor for name, tensor in self.backbone.items()}


def generate_adapters(model: Model, conditions: Iterable[Condition], *, whole: bool = True) -> Iterator[Adapter]:
    """Compute the weights of conditions and yield them as adapters.

    Args:
        model: The model.
        conditions: The conditions.
        whole: Whether adapters contain the trained parameters of the backbone; otherwise they fit only the backbone in
            its present state.
    """
    parameters = trained_parameters(model) if whole else {}
    trained = {name.removeprefix("backbone."): p for name, p in parameters.items() if name.startswith("backbone.")}
    identity, lm_head = identity_of(model.backbone, skip=trained), model.backbone.head_parameters().keys()
    for condition in conditions:
        # One condition at a time: in a batch, sums may be taken in another order and differ in the last bit.
        with eval_mode(model.method):
            weights = model.method.weights([condition])
        task = model.tasks.get(condition.task)
        needed = trained.keys() if task is None or task.uses_lm_head else trained.keys() - lm_head
        yield Adapter(
            condition,
            weights,
            labels=task.labels if task else (),
            head=dict(task.named_parameters()) if task else {},
            backbone=trained,
            identity=identity,
            settings=task.settings() if task else {},
            needs_trained_backbone=bool(needed),
        )


def load_adapters_into(adapters: Sequence[Adapter], backbone: Backbone, places: Sequence[str] = ()) -> Model:
    """Build a model that predicts under the conditions of adapters; their trained parameters replace the backbone's.

    Args:
        adapters: Adapters of different conditions, all for this backbone.
        backbone: The backbone.
        places: Where each adapter is from, for messages.
    """
    # Every adapter is checked, not only the first: one that fits by its shapes alone would predict nonsense silently.
    places = places or [f"adapter {number}" for number in range(1, len(adapters) + 1)]
    first, first_of_task, place_of = adapters[0], dict[str, Adapter](), dict[Condition, str]()
    identity = identity_of(backbone, skip=first.backbone)
    for adapter, place in zip(adapters, places, strict=True):
        if (other := place_of.setdefault(adapter.condition, place)) != place:
            raise CheckpointError(
                f"{place}: an adapter for {adapter.condition}, as is {other}. Remove one of them, or load one by one."
            )
        for block in adapter.weights.blocks:
            check_block(block, backbone.shape, place)
        if not _are_equal(adapter.backbone, first.backbone):
            raise CheckpointError(
                f"{place}: adapters that change the backbone in different ways. Load them one by one."
            )
        kin = first_of_task.setdefault(adapter.condition.task, adapter)  # a task has one head for all languages
        same_task = adapter.labels == kin.labels and adapter.settings == kin.settings
        if not same_task or not _are_equal(adapter.head, kin.head):
            raise CheckpointError(f"{place}: different heads for {adapter.condition.task}. Load them one by one.")
        check_identity(adapter.identity, identity, place, name=backbone.name)

    method = ExportedAdapters(
        {adapter.condition: adapter.weights for adapter in adapters},
        shape=backbone.shape,
        labels={task: len(adapter.labels) or None for task, adapter in first_of_task.items()},
    )
    try:
        tasks = {task: task_config(task, adapter.labels, adapter.settings) for task, adapter in first_of_task.items()}
    except TypeError as error:
        raise CheckpointError(f"{places[0]}: settings of a task that this version does not know: {error}") from error
    model = Model(backbone, method, languages=method.languages, tasks=tasks)

    parameters = dict(backbone.model.named_parameters())
    trained = {name: parameters[name] for name in first.backbone if name in parameters}
    load_tensors_into(trained, first.backbone, Path(places[0]))
    for task, adapter in first_of_task.items():
        head = dict(model.tasks[task].named_parameters()) if task in model.tasks else {}
        load_tensors_into(head, adapter.head, Path(place_of[adapter.condition]))
    return model.eval()


def _are_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def check_block(block: Block, shape: BackboneShape, place: str) -> None:
    """Raise an error for a block that does not fit a backbone of this shape."""
    if block.kind not in BLOCKS:
        raise CheckpointError(f"{place}: unknown kind of block {block.kind!r}. {suggest(block.kind, BLOCKS)} {HINT}")
    kind, shapes = BLOCKS[block.kind], {name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()}
    if block.placement not in kind.placements(shape):
        raise CheckpointError(
            f"{place}: a {block.kind} cannot be placed at {block.placement!r} of {shape.family}. "
            f"Known: {', '.join(kind.placements(shape))}."
        )
    if not set(block.sites) <= set(kind.sites(shape)) or len(set(block.sites)) != len(block.sites):
        raise CheckpointError(f"{place}: a {block.kind} for layers that this {shape.family} does not have.")
    expected = shapes_of(kind.specs_like(shapes, shape))
    if shapes != dict(expected):
        raise CheckpointError(
            f"{place}: the tensors of a {block.kind} are {_shapes_text(shapes)}; on this {shape.family} they should be "
            f"{_shapes_text(expected)}."
        )


def _shapes_text(shapes: Shapes) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))


def backbone_note(identity: Mapping[str, Any]) -> str:
    """Return the text under which this machine notes where the backbone of an adapter is."""
    return json.dumps(dict(identity), sort_keys=True)


# -- on disk ----------------------------------------------------------------------------------------------------------


def write_adapter(adapter: Adapter, path: Path, *, card: str = "") -> Path:
    """Write an adapter to a new directory, atomically."""
    if is_taken(path):
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
    manifest = {"polyloom": __version__, "adapter": described, "backbone": dict(adapter.identity)}
    return write_checkpoint(
        path, adapter.tensors(), manifest | {"about": dict(adapter.about)}, texts={"README.md": card} if card else {}
    )


def read_adapter(path: Path) -> Adapter:
    """Read an adapter that `write_adapter` wrote; raise an error for anything else."""
    manifest, tensors = read_manifest(path), read_tensors(path, finite=False)  # a bias may be minus infinity
    try:
        described = manifest["adapter"]
        blocks = [_read_block(number, block, tensors) for number, block in enumerate(described["blocks"])]
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
    # Every tensor must be used and finite: otherwise a damaged or foreign adapter would load and be wrong silently.
    if unused := sorted(tensors.keys() - adapter.tensors().keys()):
        raise CheckpointError(f"{path}: tensors that belong to nothing: {', '.join(unused[:8])}.")
    kinds = {f"block.{i}.{name}": block.kind for i, block in enumerate(blocks) for name in block.tensors}
    for name, tensor in tensors.items():
        kind = BLOCKS.get(kinds.get(name, ""))
        finite = kind.finite(name.split(".", 2)[2], tensor) if kind else tensor.isfinite()
        if tensor.dtype != torch.float32 or not finite.all():
            raise CheckpointError(f"{path / TENSORS}: {name} is not of finite 32-bit numbers.")
    return adapter


def _read_block(number: int, described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Block:
    """Read a block from its description and the tensors with its number, which have no dimension of conditions."""
    block = {name: tensor[None] for name, tensor in _under(f"block.{number}.", tensors).items()}
    sites = []
    for text in _strings(described["sites"]):
        stack, _, layer = text.partition(".")
        if not (layer.isascii() and layer.isdecimal() and len(layer) < 6):
            raise ValueError(f"{text!r} is not a site")
        sites.append(Site(stack, int(layer)))
    if not block or any(t.dim() < 2 or t.shape[1] != len(sites) for t in block.values()):
        raise ValueError(f"block {number} has no tensors, or not one for every site")
    return Block(str(described["kind"]), str(described["placement"]), tuple(sites), block)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"{value!r} is not a list of names")
    return tuple(value)
