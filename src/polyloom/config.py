"""Recipes: from YAML to checked settings, with all mistakes at once, and back."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from polyloom.errors import BackboneError, ConditionError, ConfigError, PolyloomError, suggest
from polyloom.methods import METHODS, MethodConfig, build_method
from polyloom.settings import describe, read_settings
from polyloom.types import BackboneShape, Condition, World

if TYPE_CHECKING:
    from polyloom.backbones import Backbone

STRICT = ConfigDict(extra="forbid", strict=True)
with_config(STRICT)(MethodConfig)  # inherited by every method's settings, which know nothing of pydantic

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

TASKS = {
    "mlm": "masked language modelling on raw text: perplexity",
    "pos": "part-of-speech tagging: accuracy",
    "ner": "named entity recognition: entity F1",
    "dep": "dependency parsing: UAS, LAS",
    "nli": "natural language inference: accuracy",
    "mt": "translation: BLEU, chrF",
}


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which model is extended: by name, by configuration, or both (then nothing is looked up to plan).

    Attributes:
        name: On the Hugging Face Hub, or a directory.
        config: Keys of its ``config.json``, with ``model_type``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: Annotated[str, Field(min_length=1)] | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Settings of a task.

    Attributes:
        labels: Size of its label set, where it has one and it is known beforehand.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    labels: Count | None = None


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How weights are updated.

    Attributes:
        lr: Peak learning rate.
        schedule: What follows the warm-up.
        warmup_steps: Steps until the peak.
        betas: Of Adam.
        eps: Of Adam.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    lr: Positive = 1e-4
    schedule: Literal["constant", "linear", "inverse-sqrt"] = "linear"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Positive = 1e-8


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What a run consists of; what is left out is for the run to say.

    Attributes:
        steps: Optimizer steps.
        rows_per_batch: Rows of a batch.
        tokens_per_batch: Tokens of a batch, where batches are made by tokens.
        max_length: Tokens of a row.
        temperature: Of the mixture over cells.
        label_smoothing: Of the loss.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    steps: Count | None = None
    rows_per_batch: Count | None = None
    tokens_per_batch: Count | None = None
    max_length: Count | None = None
    temperature: Positive = 1.0
    label_smoothing: Share = 0.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything a run is made from.

    Attributes:
        backbone: The model to extend.
        method: Settings of the method.
        languages: Languages; the first is by convention the source of transfer.
        tasks: Tasks by name.
        directions: Pairs for methods that store something per pair: ``en/tr``, ``en/*``, ``*/en``.
        optim: How weights are updated.
        train: What a run consists of.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    backbone: BackboneConfig
    method: MethodConfig
    languages: tuple[str, ...]
    tasks: dict[str, TaskConfig]
    directions: tuple[str, ...] = ()
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def world(self) -> World:
        """What the method is built for."""
        return World.of(
            self.languages, {name: task.labels for name, task in self.tasks.items()}, self.directions or None
        )


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read and check a recipe; every mistake in it is reported at once.

    Args:
        path: A YAML file.
        overrides: Settings to change, such as ``optim.lr=5e-5``.
    """
    return parse_recipe(read_settings(path, overrides), source=str(path))


def parse_recipe(settings: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """Check plain settings and turn them into a recipe."""
    mistakes: list[str] = []
    known = {item.name: item for item in fields(Recipe)}
    mistakes += [f"{key}: unknown key. {suggest(key, known)}" for key in settings if key not in known]
    made = {}
    for name, item in known.items():
        if name in settings:
            section = settings[name]
            made[name] = _method(section, mistakes) if name == "method" else _section(name, section, mistakes)
        elif item.default is MISSING and item.default_factory is MISSING:
            mistakes.append(f"{name}: missing. {_HINTS[name]}")
    mistakes += [f"{name}: empty. {_HINTS[name]}" for name in ("languages", "tasks") if settings.get(name) in ([], {})]
    mistakes += _names_mistakes(made)
    shape = _backbone_shape(made.get("backbone"), mistakes)
    if not mistakes:
        recipe = Recipe(**made)
        if shape is not None:
            mistakes += _fit_mistakes(recipe, shape)
    if mistakes:
        order = ["", *known]
        raise ConfigError(source, sorted(dict.fromkeys(mistakes), key=lambda text: _rank(text, order)))
    return recipe


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every setting of a recipe, defaults included, as plain data that `parse_recipe` reads back."""
    settings = asdict(recipe)
    settings["method"] = {"name": recipe.method.name} | settings["method"]
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of recipes, for editors."""
    schema = TypeAdapter(Recipe).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Polyloom recipe"
    schema["$defs"].pop("MethodConfig", None)
    choices = []
    for name, method in METHODS.items():
        choice = TypeAdapter(method.config_type).json_schema()
        choice["properties"] = {"name": {"const": name}} | choice.get("properties", {})
        choice["required"] = ["name", *choice.get("required", [])]
        choices.append(choice)
    schema["properties"]["method"] = {"oneOf": choices}
    schema["properties"]["languages"] |= {"minItems": 1, "uniqueItems": True}
    schema["properties"]["tasks"] |= {"minProperties": 1, "propertyNames": {"enum": list(TASKS)}}
    return schema


def build_backbone(recipe: Recipe, *, device: str = "cpu") -> "Backbone":
    """Build or load the backbone of a recipe; on ``meta`` neither weights nor, with a config, network are needed."""
    # Transformers takes seconds to import: not for commands that need no model.
    from polyloom.backbones import backbone_from_config, load_backbone  # noqa: PLC0415

    name, config = recipe.backbone.name, recipe.backbone.config
    if config is not None and (device == "meta" or name is None):
        return backbone_from_config(config, device=device)
    assert name is not None
    return load_backbone(name, device=device)


_HINTS = {
    "backbone": "Such as `backbone: {name: FacebookAI/xlm-roberta-base}`.",
    "method": "Such as `method: {name: hyperx}`.",
    "languages": "Such as `languages: [en, tr, yo]`.",
    "tasks": "Such as `tasks: {mlm: {}, pos: {labels: 17}}`.",
}
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
}


def _section(name: str, value: Any, mistakes: list[str]) -> Any:
    """Check one section against the type it has in `Recipe`."""
    kind = next(item.type for item in fields(Recipe) if item.name == name)
    return _checked(kind, value, mistakes, path=name)


def _method(value: Any, mistakes: list[str]) -> Any:
    """Check the settings of the method that is named; of the one probably meant, if there is none of that name."""
    if not isinstance(value, dict):
        mistakes.append(f"method: expected a mapping, found {describe(value)}. {_HINTS['method']}")
        return None
    name = value.get("name")
    if name is None:
        mistakes.append(f"method.name: missing. {suggest('', METHODS)}")
    elif not isinstance(name, str) or name not in METHODS:
        mistakes.append(f"method.name: unknown method {name!r}. {suggest(str(name), METHODS)}")
        name = next(iter(get_close_matches(str(name), METHODS, n=1)), None)
    if name not in METHODS:
        return None
    settings = {key: item for key, item in value.items() if key != "name"}
    return _checked(METHODS[name].config_type, settings, mistakes, path="method")


def _checked(kind: Any, value: Any, mistakes: list[str], *, path: str) -> Any:
    """Check a value, again and again without its wrong keys, so that no mistake hides another."""
    while True:
        try:
            return TypeAdapter(kind).validate_json(json.dumps(value))
        except ValidationError as error:
            details = error.errors(include_url=False)
            whole = {str(detail["loc"][0]): int(detail["input"]) for detail in details if _is_whole(detail)}
            if whole:  # `steps: 1e5` is a whole number in everything but notation
                value = value | whole
                continue
            mistakes += [_sentence(detail, kind, path=path) for detail in details]
            wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
        except ConfigError as error:  # from a dataclass's own checks, which name the setting first
            mistakes += error.mistakes
            wrong = {key for key in value if any(f"{path}.{key}:" in mistake for mistake in error.mistakes)}
        if not isinstance(value, dict) or not wrong & value.keys():
            return None
        value = {key: item for key, item in value.items() if key not in wrong}


def _is_whole(detail: Any) -> bool:
    found = detail["input"]
    return detail["type"] == "int_type" and len(detail["loc"]) == 1 and isinstance(found, float) and found.is_integer()


def _sentence(detail: Any, kind: Any, *, path: str) -> str:
    """Say what pydantic found, in the words of a recipe."""
    place = ".".join([path, *map(str, detail["loc"])])
    found = detail["input"]
    if detail["type"] == "unexpected_keyword_argument":
        owner = kind if isinstance(kind, type) and len(detail["loc"]) == 1 else TaskConfig
        return f"{place}: unknown key. {suggest(str(detail['loc'][-1]), _keys(owner))}"
    if detail["type"] == "literal_error":
        return f"{place}: {found!r} is not a choice. {suggest(str(found), _quoted(detail['ctx']['expected']))}"
    if detail["type"] in _EXPECTED:
        return f"{place}: expected {_EXPECTED[detail['type']]}, found {describe(found)}."
    if detail["type"] == "missing":
        return f"{place}: missing."
    return f"{place}: {detail['msg'].replace('Input should be', 'should be')}, found {describe(found)}."


def _rank(mistake: str, order: list[str]) -> int:
    section = re.split(r"[.:]", mistake)[0]
    return order.index(section) if section in order else 0


def _keys(kind: Any) -> list[str]:
    return [item.name for item in fields(kind)]


def _quoted(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected)


def _is_name(text: str) -> bool:
    try:
        Condition("check", text)
    except ConditionError:
        return False
    return True


def _names_mistakes(made: Mapping[str, Any]) -> list[str]:
    """Mistakes in the names of languages and tasks, and in what refers to them."""
    mistakes = []
    languages: tuple[str, ...] = made.get("languages") or ()
    tasks: Mapping[str, TaskConfig] = made.get("tasks") or {}
    for name in dict.fromkeys(languages):
        if languages.count(name) > 1:
            mistakes.append(f"languages: {name!r} is listed {languages.count(name)} times.")
        if not _is_name(name):
            mistakes.append(f"languages: {name!r} is not a name: letters and digits, joined by '.', '_' or '-'.")
    mistakes += [f"tasks.{name}: unknown task. {suggest(name, TASKS)}" for name in tasks if name not in TASKS]
    for pattern in made.get("directions") or ():
        ends = pattern.split("/")
        if len(ends) != 2 or not all(ends):
            mistakes.append(f"directions: {pattern!r} is no direction. Write source/target: en/tr, en/* or */en.")
        elif languages:
            unknown = [end for end in ends if end != "*" and end not in languages]
            mistakes += [
                f"directions: {pattern!r}: unknown language {end!r}. {suggest(end, dict.fromkeys(languages))}"
                for end in unknown
            ]
    return mistakes


def _backbone_shape(backbone: BackboneConfig | None, mistakes: list[str]) -> BackboneShape | None:
    """Build the backbone's empty shell, once more without every key it does not know, to name all of them."""
    if backbone is None:
        return None
    if backbone.name is None and backbone.config is None:
        mistakes.append(f"backbone: neither name nor config is given. {_HINTS['backbone']}")
        return None
    config = backbone.config
    while config is not None:
        from polyloom.backbones import backbone_from_config  # noqa: PLC0415 - seconds to import

        try:
            shape: BackboneShape = backbone_from_config(config, device="meta").shape
            return shape
        except BackboneError as error:
            mistakes.append(str(error))
            wrong = [key for key in config if str(error).startswith(f"backbone.config.{key}:")]
            config = {key: value for key, value in config.items() if key not in wrong} if wrong else None
        except Exception as error:  # whatever Transformers raises on values it does not like
            mistakes.append(f"backbone.config: {' '.join(str(error).split())}")
            config = None
    return None


def _fit_mistakes(recipe: Recipe, shape: BackboneShape) -> list[str]:
    """Whether method, backbone and world go together."""
    try:
        with torch.device("meta"):
            build_method(recipe.method, shape=shape, world=recipe.world())
    except ConfigError as error:
        return list(error.mistakes)
    except PolyloomError as error:
        return [str(error)]
    return []
