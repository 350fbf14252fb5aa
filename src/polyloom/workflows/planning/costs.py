"""Count parameters, bytes and operations of a recipe's method and of every alternative, on the meta device."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import nn

from polyloom.backbones import Backbone
from polyloom.config import Recipe
from polyloom.config.build import empty_backbone
from polyloom.errors import ConditionError, ConfigError, PolyloomError
from polyloom.methods import METHODS, Method, MethodConfig, build_method
from polyloom.methods.base import Stage
from polyloom.model import parameter_groups, stages_that_train
from polyloom.nn.blocks import BLOCKS
from polyloom.nn.empty import empty_modules
from polyloom.tasks import TaskConfig
from polyloom.weights import Weights

LANGUAGE_COUNTS = (10, 100, 1_000, 10_000)
BYTES_PER_PARAMETER = 4  # fp32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one method. Task heads are not counted: they are the same for all methods.

    Attributes:
        settings: Settings of the method.
        extra_parameters: Parameters that the method adds to the backbone.
        total_parameters: Parameters of the backbone and the method.
        trainable_parameters: Parameters that are trained in any stage.
        bytes_per_condition: Size of one condition's weights in fp32, stored or generated.
        extra_flops_per_token: Operations of applying them in a forward pass; a multiply-add counts as two.
        parameters_per_language: Parameters of one more language, with the directions that the patterns then give.
        parameters_per_task: Parameters of one more task.
        acceleration: How many parameters more the language after that adds: none, unless directions are ``*/*``.
        stages: The stages of training.
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
        """Return the extra parameters with `more` (or fewer) languages; exact, as counts are at most quadratic."""
        return self.extra_parameters + more * self.parameters_per_language + more * (more - 1) // 2 * self.acceleration


@dataclass(frozen=True, kw_only=True)
class BackboneFacts:
    """Facts about the backbone."""

    name: str | None
    family: str
    parameters: int
    width: int
    layers: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen method and every alternative for the same backbone, languages and tasks.

    Attributes:
        backbone: The backbone.
        chosen: Name of the recipe's method.
        languages: Number of languages.
        tasks: Number of tasks.
        directions: Number of pairs, for methods that store weights per pair.
        methods: Cost by method, the chosen one first. If a method does not apply, a text with the reason.
    """

    backbone: BackboneFacts
    chosen: str
    languages: int
    tasks: int
    directions: int
    methods: Mapping[str, Cost | str]

    def costs(self) -> dict[str, Cost]:
        """Return the costs of the methods that apply."""
        return {name: cost for name, cost in self.methods.items() if isinstance(cost, Cost)}

    def growth(self, method: str) -> dict[str, int]:
        """Return the extra parameters of a method by number of languages."""
        cost = self.costs()[method]
        return {str(count): cost.extra_with(count - self.languages) for count in LANGUAGE_COUNTS}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; a method that does not apply has nulls and a reason."""
        nulls = {field.name: None for field in fields(Cost)} | {"growth": None}
        methods = {
            name: asdict(cost) | {"growth": self.growth(name), "reason": None}
            if isinstance(cost, Cost)
            else nulls | {"reason": cost}
            for name, cost in self.methods.items()
        }
        return asdict(replace(self, methods={})) | {"methods": methods}


def plan(recipe: Recipe) -> Plan:
    """Count the cost of a recipe's method, and of every other method in its place.

    Alternatives have their papers' settings, with the block and the adapter size of the recipe. No weights are
    computed or loaded.
    """
    backbone = empty_backbone(recipe.backbone)
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
    per_language = extra(_with_languages(recipe, 1)) - now
    weights = _one_condition(method)
    num_stacks = len(backbone.shape.stacks)
    return Cost(
        settings=asdict(config),
        extra_parameters=now,
        total_parameters=_count(backbone) + now,
        trainable_parameters=_trainable(method, backbone),
        bytes_per_condition=BYTES_PER_PARAMETER * weights.num_parameters(),
        extra_flops_per_token=sum(BLOCKS[block.kind].flops(block, num_stacks) for block in weights.blocks),
        parameters_per_language=per_language,
        parameters_per_task=extra(_with_task(recipe)) - now,
        acceleration=extra(_with_languages(recipe, 2)) - now - 2 * per_language,
        stages=tuple(stages_that_train(method, parameter_groups(method, backbone))),
    )


def _build(config: MethodConfig, backbone: Backbone, recipe: Recipe) -> Method:
    with empty_modules():
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
    """Return the weights of the first condition that the method supports."""
    language = next(iter(method.languages))
    reasons = []
    for task in method.tasks:
        for rest in (next(iter(method.directions), language), language):
            try:
                with empty_modules():
                    return method.weights([f"{task}/{rest}"])
            except ConditionError as error:
                reasons.append(str(error))
    raise ConditionError(reasons[-1])


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _trainable(method: Method, backbone: Backbone) -> int:
    """Count the distinct parameters that are trained in any stage."""
    trains = {group for stage in method.stages() for group in stage.trains}
    groups = parameter_groups(method, backbone)
    learning = {id(parameter): parameter.numel() for name in trains & groups.keys() for parameter in groups[name]}
    return sum(learning.values())
