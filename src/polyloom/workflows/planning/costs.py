"""Count parameters, bytes and operations of a recipe's method and of every alternative, on the meta device."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import nn

from polyloom.backbones import Backbone
from polyloom.conditions import Inventory
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
    """The cost of one method. Task heads are not counted: they are the same for all methods."""

    settings: Mapping[str, Any]
    """Settings of the method."""
    extra_parameters: int
    """Parameters that the method adds to the backbone."""
    total_parameters: int
    """Parameters of the backbone and the method."""
    trainable_parameters: int
    """Parameters that are trained in any stage."""
    bytes_per_condition: int
    """Size of one condition's weights in fp32, stored or generated."""
    extra_flops_per_token: int
    """Operations of applying them in a forward pass; a multiply-add counts as two."""
    parameters_per_language: int
    """Parameters of one more language, with the directions that the patterns then give."""
    parameters_per_task: int
    """Parameters of one more task."""
    acceleration: int
    """How many parameters more the language after that adds: none, unless directions are ``*/*``."""
    stages: tuple[Stage, ...]
    """The stages of training."""

    def extra_with(self, more: int) -> int:
        """Return the extra parameters with `more` (or fewer) languages; exact, as counts are at most quadratic."""
        return self.extra_parameters + more * self.parameters_per_language + more * (more - 1) // 2 * self.acceleration


@dataclass(frozen=True, kw_only=True)
class BackboneFacts:
    """Facts about the backbone."""

    name: str | None
    """Its name, if it is pretrained."""
    family: str
    """The family of its architecture."""
    parameters: int
    """Number of its parameters."""
    width: int
    """Size of its states."""
    layers: Mapping[str, int]
    """Number of layers by stack."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The chosen method and every alternative for the same backbone, languages and tasks."""

    backbone: BackboneFacts
    """The backbone."""
    chosen: str
    """Name of the recipe's method."""
    languages: int
    """Number of languages."""
    tasks: int
    """Number of tasks."""
    directions: int
    """Number of pairs, for methods that store weights per pair."""
    methods: Mapping[str, Cost | str]
    """Cost by method, the chosen one first. If a method does not apply, a text with the reason."""

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
    backbone, chosen = empty_backbone(recipe.backbone), recipe.method.name
    shared = {key: value for key, value in asdict(recipe.method).items() if key in ("adapter_size", "block")}
    configs = {chosen: recipe.method}
    for name, method in METHODS.items():
        known = {item.name for item in fields(method.config_type)}
        configs.setdefault(name, method.config_type(**{key: shared[key] for key in shared if key in known}))

    # Growth is counted by building each method again, with names that the recipe does not have: longer than all.
    language = "further" + "_x" * max(map(len, recipe.languages))
    languages = [(*recipe.languages, f"{language}_0"), (*recipe.languages, f"{language}_0", f"{language}_1")]
    larger = [replace(recipe, languages=names).inventory() for names in languages]
    task = "further" + "_x" * max(map(len, recipe.tasks))
    labels = max((config.num_labels or 0 for config in recipe.tasks.values()), default=0) or None
    with_task = replace(recipe, tasks=recipe.tasks | {task: TaskConfig(labels=labels)}).inventory()

    inventory, shape = recipe.inventory(), backbone.shape
    methods: dict[str, Cost | str] = {}
    for name, config in configs.items():
        try:
            methods[name] = _cost(config, backbone, inventory, larger=larger, with_task=with_task)
        except ConfigError as error:
            methods[name] = " ".join(error.mistakes)
        except PolyloomError as error:
            methods[name] = str(error)
    if isinstance(reason := methods[chosen], str):
        raise ConfigError(f"method {chosen}", [reason])
    return Plan(
        backbone=BackboneFacts(
            name=recipe.backbone.name,
            family=shape.family,
            parameters=_count(backbone),
            width=shape.width,
            layers={stack: sum(site.stack == stack for site in shape.sites) for stack in shape.stacks},
        ),
        chosen=chosen,
        languages=len(inventory.languages),
        tasks=len(inventory.tasks),
        directions=len(inventory.directions),
        methods=methods,
    )


def _cost(
    config: MethodConfig,
    backbone: Backbone,
    inventory: Inventory,
    *,
    larger: Sequence[Inventory],
    with_task: Inventory,
) -> Cost:
    """Count the cost of a method; `larger` has one and two more languages, `with_task` one more task."""

    def build(inventory: Inventory) -> Method:
        with empty_modules():
            return build_method(config, shape=backbone.shape, inventory=inventory).eval()

    method = build(inventory)
    now, one_more, two_more, more_tasks = (_count(module) for module in (method, *map(build, larger), build(with_task)))

    # A parameter may be trained in several stages, and counts once.
    groups = parameter_groups(method, backbone)
    trained = {group for stage in method.stages() for group in stage.trains} & groups.keys()
    trainable = {id(parameter): parameter.numel() for name in trained for parameter in groups[name]}

    weights, num_stacks = _weights_of_one_condition(method), len(backbone.shape.stacks)
    return Cost(
        settings=asdict(config),
        extra_parameters=now,
        total_parameters=_count(backbone) + now,
        trainable_parameters=sum(trainable.values()),
        bytes_per_condition=BYTES_PER_PARAMETER * weights.num_parameters(),
        extra_flops_per_token=sum(BLOCKS[block.kind].flops(block, num_stacks) for block in weights.blocks),
        parameters_per_language=one_more - now,
        parameters_per_task=more_tasks - now,
        acceleration=two_more - 2 * one_more + now,  # second difference
        stages=tuple(stages_that_train(method, groups)),
    )


def _weights_of_one_condition(method: Method) -> Weights:
    """Return the weights of the first condition that the method supports."""
    first_languages = [*list(method.directions)[:1], *list(method.languages)[:1]]
    reasons = []
    for task in method.tasks:
        for languages in first_languages:
            try:
                with empty_modules():
                    return method.weights([f"{task}/{languages}"])
            except ConditionError as error:
                reasons.append(str(error))
    raise ConditionError(reasons[-1])


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
