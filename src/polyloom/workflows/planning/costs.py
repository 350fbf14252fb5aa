"""Parameters, bytes and operations of the chosen method against every alternative, on the meta device."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyloom.backbones import Backbone
from polyloom.config import Recipe, backbone_from_recipe
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import ConditionError, ConfigError, PolyloomError
from polyloom.methods import METHODS, Method, MethodConfig, build_method
from polyloom.methods.base import Stage
from polyloom.model import parameter_groups
from polyloom.nn.blocks import BLOCKS
from polyloom.tasks import TaskConfig
from polyloom.weights import Weights

GROWTH = (10, 100, 1_000, 10_000)
BYTES_PER_PARAMETER = 4  # fp32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one method costs. Task heads are not counted: all methods have the same.

    Attributes:
        settings: The settings it was counted with.
        extra_parameters: What it adds to the backbone.
        total_parameters: Backbone and what is added.
        trainable_parameters: What learns in any of its stages.
        bytes_per_condition: Of one condition's weights in fp32, stored or generated.
        extra_flops_per_token: Of applying them, forward, with two operations per multiply-add.
        parameters_per_language: What one more language adds, with the directions that the patterns then give.
        parameters_per_task: What one more task adds.
        acceleration: What the language after that adds more: nothing, unless the directions are ``*/*``.
        stages: What is trained when.
    """

    settings: Mapping[str, Any]
    extra_parameters: int
    total_parameters: int
    trainable_parameters: int
    bytes_per_condition: int
    extra_flops_per_token: int
    parameters_per_language: int
    parameters_per_task: int
    acceleration: int
    stages: tuple[Stage, ...]

    def extra_with(self, more: int) -> int:
        """Extra parameters with so many more (or fewer) languages; exact, as counts are at most quadratic."""
        return self.extra_parameters + more * self.parameters_per_language + more * (more - 1) // 2 * self.acceleration


@dataclass(frozen=True, kw_only=True)
class BackboneFacts:
    """What is being extended."""

    name: str | None
    family: str
    parameters: int
    width: int
    layers: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen method and every alternative for the same backbone, languages and tasks.

    Attributes:
        backbone: What is extended.
        chosen: Name of the recipe's method.
        languages: How many.
        tasks: How many.
        directions: How many pairs, where methods store something per pair.
        methods: Cost by method, the chosen one first; a text saying why where a method does not apply.
    """

    backbone: BackboneFacts
    chosen: str
    languages: int
    tasks: int
    directions: int
    methods: Mapping[str, Cost | str]

    def costs(self) -> dict[str, Cost]:
        """The methods that apply."""
        return {name: cost for name, cost in self.methods.items() if isinstance(cost, Cost)}

    def growth(self, method: str) -> dict[str, int]:
        """Extra parameters of a method by number of languages."""
        cost = self.costs()[method]
        return {str(count): cost.extra_with(count - self.languages) for count in GROWTH}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a method that does not apply has nulls and a reason."""
        nulls = {field.name: None for field in fields(Cost)} | {"growth": None}
        methods = {
            name: asdict(cost) | {"growth": self.growth(name), "reason": None}
            if isinstance(cost, Cost)
            else nulls | {"reason": cost}
            for name, cost in self.methods.items()
        }
        return asdict(replace(self, methods={})) | {"methods": methods}


def plan(recipe: Recipe) -> Plan:
    """Count what a recipe's method costs, and every other method in its place.

    Alternatives have their papers' settings, with the block and the adapter size of the recipe. No weights are made or
    loaded.
    """
    backbone = empty_backbone(recipe)
    sizes = {key: value for key, value in asdict(recipe.method).items() if key in ("adapter_size", "block")}
    configs = {recipe.method.name: recipe.method}
    for name, method in METHODS.items():
        known = {field.name for field in fields(method.config_type)}
        configs.setdefault(name, method.config_type(**{key: sizes[key] for key in sizes if key in known}))
    shape = backbone.shape
    inventory = recipe.inventory()
    methods = {name: _cost_or_reason(config, backbone, recipe) for name, config in configs.items()}
    reason = methods[recipe.method.name]
    if isinstance(reason, str):
        raise ConfigError(f"method {recipe.method.name}", [reason])
    return Plan(
        backbone=BackboneFacts(
            name=recipe.backbone.name,
            family=shape.family,
            parameters=_count(backbone),
            width=shape.width,
            layers={stack: sum(site.stack == stack for site in shape.sites) for stack in shape.stacks},
        ),
        chosen=recipe.method.name,
        languages=len(inventory.languages),
        tasks=len(inventory.tasks),
        directions=len(inventory.directions),
        methods=methods,
    )


def empty_backbone(recipe: Recipe) -> Backbone:
    """The backbone without weights; one from a preset with as many pieces as its tokenizer has, if that is there."""
    name, known = recipe.backbone.tokenizer, {}
    if recipe.backbone.preset and name and Path(name).is_dir():
        known = {"vocab_size": load_tokenizer(name).vocab_size}
    return backbone_from_recipe(recipe, device="meta", vocabulary=known)


def _cost_or_reason(config: MethodConfig, backbone: Backbone, recipe: Recipe) -> Cost | str:
    try:
        return _cost(config, backbone, recipe)
    except ConfigError as error:
        return " ".join(error.mistakes)
    except PolyloomError as error:
        return str(error)


def _cost(config: MethodConfig, backbone: Backbone, recipe: Recipe) -> Cost:
    def extra(changed: Recipe) -> int:
        return _count(_build(config, backbone, changed))

    method = _build(config, backbone, recipe)
    now = _count(method)
    one = extra(_with_languages(recipe, 1)) - now
    weights = _one_condition(method)
    num_stacks = len(backbone.shape.stacks)
    return Cost(
        settings=asdict(config),
        extra_parameters=now,
        total_parameters=_count(backbone) + now,
        trainable_parameters=_trainable(method, backbone),
        bytes_per_condition=BYTES_PER_PARAMETER * weights.num_parameters(),
        extra_flops_per_token=sum(BLOCKS[block.kind].flops(block, num_stacks) for block in weights.blocks),
        parameters_per_language=one,
        parameters_per_task=extra(_with_task(recipe)) - now,
        acceleration=extra(_with_languages(recipe, 2)) - now - 2 * one,
        stages=method.stages(),
    )


def _build(config: MethodConfig, backbone: Backbone, recipe: Recipe) -> Method:
    with torch.device("meta"):
        return build_method(config, shape=backbone.shape, inventory=recipe.inventory()).eval()


def _with_languages(recipe: Recipe, more: int) -> Recipe:
    # Longer than any name the recipe has, so that it is not one of them.
    stem = "further" + "_x" * max(len(name) for name in recipe.languages)
    return replace(recipe, languages=(*recipe.languages, *(f"{stem}_{index}" for index in range(more))))


def _with_task(recipe: Recipe) -> Recipe:
    labels = max((task.num_labels or 0 for task in recipe.tasks.values()), default=0) or None
    stem = "further" + "_x" * max(len(name) for name in recipe.tasks)
    return replace(recipe, tasks=recipe.tasks | {stem: TaskConfig(labels=labels)})


def _one_condition(method: Method) -> Weights:
    """The weights of the first condition that the method serves."""
    language = next(iter(method.languages))
    reasons = []
    for task in method.tasks:
        for rest in (next(iter(method.directions), language), language):
            try:
                with torch.device("meta"):
                    return method.weights([f"{task}/{rest}"])
            except ConditionError as error:
                reasons.append(str(error))
    raise ConditionError(reasons[-1])


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _trainable(method: Method, backbone: Backbone) -> int:
    """Distinct parameters that learn in any stage."""
    trains = {group for stage in method.stages() for group in stage.trains}
    groups = parameter_groups(method, backbone)
    learning = {id(parameter): parameter.numel() for name in trains & groups.keys() for parameter in groups[name]}
    return sum(learning.values())
