"""Read a recipe from YAML and check it; all mistakes are reported at once."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from polyloom.conditions import Condition
from polyloom.config.overrides import apply_overrides, drop_stale_config
from polyloom.config.recipe import BackboneConfig, Recipe, StageConfig
from polyloom.data.slices import parse_slice
from polyloom.errors import BackboneError, ConditionError, ConfigError, DataError, PolyloomError, suggest
from polyloom.io.untrusted import is_printable
from polyloom.io.yaml import describe, read_settings
from polyloom.methods import METHODS, Method, build_method
from polyloom.methods.base import layer_blocks
from polyloom.nn.empty import empty_modules
from polyloom.recipes import find_file, shipped_recipes
from polyloom.registry import HINT
from polyloom.tasks import TASKS, TaskConfig, find_task
from polyloom.weights import BackboneShape


def load_recipe(path: str | Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Recipe:
    """Read and check a recipe; all mistakes are reported at once.

    Args:
        path: A YAML file, or the name of a shipped recipe such as ``mini/hyperx``.
        overrides: Settings to change: ``["optim.lr=5e-5"]`` or ``{"optim.lr": 5e-5}``. With another
            ``backbone.name``, the configuration of the recipe's own backbone is dropped.
    """
    file = find_file(path)
    if not file.parent.is_dir():
        known = suggest(str(path), shipped_recipes(), limit=40)
        raise ConfigError(str(path), [f"neither a file nor a shipped recipe. {known}"])
    if isinstance(overrides, Mapping):
        return parse_recipe(apply_overrides(read_settings(file), overrides), source=str(path))
    overrides = tuple(overrides)
    settings = read_settings(file, overrides)
    if overrides:
        drop_stale_config(settings, read_settings(file))
    return parse_recipe(settings, source=str(path))


def parse_recipe(settings: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """Check plain settings and turn them into a recipe."""
    mistakes: list[str] = []
    mistakes += [f"{text!r} has a control character." for text in _texts(settings) if not is_printable(text)]
    known = {item.name: item for item in fields(Recipe)}
    mistakes += [f"{key}: unknown key. {suggest(key, known)}" for key in settings if key not in known]
    sections = {}
    for name, item in known.items():
        if name == "stages":
            continue
        if name in settings:
            section = settings[name]
            if name in ("method", "tasks"):
                sections[name] = (_method if name == "method" else _tasks)(section, mistakes)
            else:
                section = expand_languages(section, settings.get("languages")) if name == "data" else section
                sections[name] = _section(name, section, mistakes)
        elif item.default is MISSING and item.default_factory is MISSING:
            mistakes.append(f"{name}: missing. {_HINTS[name]}")
    mistakes += [f"{name}: empty. {_HINTS[name]}" for name in ("languages", "tasks") if settings.get(name) in ([], {})]
    sections["stages"] = _stages(settings, mistakes)
    mistakes += _names_mistakes(sections) + _data_mistakes(sections)
    shape = _backbone_shape(sections.get("backbone"), mistakes)
    if not mistakes:
        recipe = Recipe(**sections)
        if shape is not None:
            mistakes += _fit_mistakes(recipe, shape)
    if mistakes:
        order = ["", *known]
        raise ConfigError(source, sorted(dict.fromkeys(mistakes), key=lambda text: _rank(text, order)))
    return recipe


def _texts(value: Any) -> Iterator[str]:
    """Yield all keys and texts of plain settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Return every setting of a recipe, defaults included, as plain data that `parse_recipe` reads back."""
    settings = asdict(recipe)
    settings["method"] = {"name": recipe.method.name} | settings["method"]
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes, for editors."""
    schema = TypeAdapter(Recipe).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Polyloom recipe"
    schema["$defs"].pop("MethodConfig", None)
    choices = []
    for name, method in METHODS.items():
        choice = _settings_schema(method.config_type)
        choice["properties"] = {"name": {"const": name}} | choice.get("properties", {})
        choice["required"] = ["name", *choice.get("required", [])]
        if "block" in choice["properties"]:
            choice["properties"]["block"]["enum"] = layer_blocks()
        choices.append(choice)
    schema["properties"]["method"] = {"oneOf": choices}
    schema["properties"]["languages"] |= {"minItems": 1, "uniqueItems": True}
    for split in ("train", "validation", "test"):
        corpora = schema["$defs"]["DataConfig"]["properties"][split]["additionalProperties"]
        schema["$defs"]["DataConfig"]["properties"][split]["additionalProperties"] = {
            "anyOf": [{"type": "string"}, corpora]
        }
    schema["$defs"].pop("TaskConfig", None)
    tasks = {name: _settings_schema(task.Config) for name, task in TASKS.items()}
    schema["properties"]["tasks"] = {
        "type": "object", "title": "Tasks", "properties": tasks, "additionalProperties": False, "minProperties": 1,
    }  # fmt: skip
    return schema


def _settings_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a class of settings, with descriptions of inherited settings.

    Pydantic takes the docstrings under fields from the class itself, not from its base classes.
    """
    schema = TypeAdapter(kind).json_schema()
    for base in filter(is_dataclass, kind.__mro__[1:]):
        for key, value in TypeAdapter(base).json_schema().get("properties", {}).items():
            if "description" in value:
                schema["properties"][key].setdefault("description", value["description"])
    return schema


_HINTS = {
    "backbone": "Such as `backbone: {name: FacebookAI/xlm-roberta-base}`.",
    "method": "Such as `method: {name: hyperx}`.",
    "languages": "Such as `languages: [en, tr, yo]`.",
    "tasks": "Such as `tasks: {mlm: {}, pos: {labels: 17}}`.",
    "stages": "Such as `stages: {languages: {train: {steps: 1000}}}`.",
}
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "labels_type": "a whole number or a list of labels",
}
_Settings = TypeVar("_Settings")
_BRANCHES = ("int", "constrained-int", "tuple[str, ...]")  # names of types in the places that pydantic reports


def _section(name: str, value: Any, mistakes: list[str]) -> Any:
    """Check one section against the type it has in `Recipe`."""
    kind = next(item.type for item in fields(Recipe) if item.name == name)
    if name == "data" and isinstance(value, dict):  # one corpus need not be a list
        value = {key: _listed(split) if key != "root" else split for key, split in value.items()}
    return _checked(kind, value, mistakes, path=name)


def expand_languages(data: Any, languages: Any) -> Any:
    """Expand the conditions for every language: ``mlm/*: wikipedia/*.txt`` stands for one corpus per language.

    Languages that the condition names already are left out, and conditions that are written out come first: ``mlm/tr:
    null`` leaves out one of them.
    """
    if not isinstance(data, dict) or not isinstance(languages, list | tuple):
        return data
    return {key: _expanded_split(split, languages) for key, split in data.items()}


def _expanded_split(split: Any, languages: Sequence[Any]) -> Any:
    if not isinstance(split, dict):
        return split
    patterns = {name: corpora for name, corpora in split.items() if "*" in str(name).split("/")[1:]}
    expanded = {name: corpora for name, corpora in split.items() if name not in patterns}
    for pattern, corpora in patterns.items():
        for language in (str(code) for code in languages if str(code) not in pattern.split("/")[1:]):
            name = pattern.replace("*", language)
            if expanded.get(name, corpora) is None:
                expanded.pop(name, None)
            else:
                expanded.setdefault(name, _named(corpora, language))
    return expanded


def _named(corpora: Any, language: str) -> Any:
    """Put a language in the place of ``*`` in the names of corpora."""
    if isinstance(corpora, list):
        return [_named(corpus, language) for corpus in corpora]
    return corpora.replace("*", language) if isinstance(corpora, str) else corpora


def _stages(settings: Mapping[str, Any], mistakes: list[str]) -> dict[str, StageConfig]:
    """Check the sections of each stage, merged with those of the whole recipe."""
    stages = settings.get("stages", {})
    if not isinstance(stages, dict):
        mistakes.append(f"stages: expected a mapping, found {describe(stages)}. {_HINTS['stages']}")
        return {}
    configs = {}
    for name, stage in stages.items():
        sections = {}
        if not isinstance(stage, dict):
            mistakes.append(f"stages.{name}: expected a mapping, found {describe(stage)}. {_HINTS['stages']}")
            continue
        known = {item.name: item for item in fields(StageConfig)}
        mistakes += [f"stages.{name}.{key}: unknown key. {suggest(key, known)}" for key in stage if key not in known]
        for section, item in known.items():
            everywhere, here = settings.get(section, {}), stage.get(section, {})
            if isinstance(everywhere, dict) and isinstance(here, dict):
                path = f"stages.{name}.{section}"
                merged = here if "strategy" in here else everywhere | here  # another strategy has other settings
                sections[section] = _checked(item.type, merged, mistakes, path=path)
            else:
                mistakes.append(f"stages.{name}.{section}: expected a mapping, found {describe(here)}.")
        configs[name] = StageConfig(**sections)
    return configs


def _method(value: Any, mistakes: list[str]) -> Any:
    """Check the settings of the named method; if its name is unknown, of the method with the most similar name."""
    if not isinstance(value, dict):
        mistakes.append(f"method: expected a mapping, found {describe(value)}. {_HINTS['method']}")
        return None
    name = value.get("name")
    if name is None:
        mistakes.append(f"method.name: missing. {suggest('', METHODS)}")
    elif not isinstance(name, str) or name not in METHODS:
        mistakes.append(f"method.name: unknown method {name!r}. {suggest(str(name), METHODS)} {HINT}")
        name = next(iter(get_close_matches(str(name), METHODS, n=1)), None)
    if name is None or name not in METHODS:
        return None
    settings = {key: item for key, item in value.items() if key != "name"}
    return _checked(METHODS[name].config_type, settings, mistakes, path="method")


def _tasks(value: Any, mistakes: list[str]) -> Any:
    """Check the settings of each task against its `Config`."""
    if not isinstance(value, dict):
        mistakes.append(f"tasks: expected a mapping, found {describe(value)}. {_HINTS['tasks']}")
        return None
    configs = {}
    for name, settings in value.items():
        task = TASKS.get(name)
        configs[name] = _checked(task.Config, settings, mistakes, path=f"tasks.{name}") if task else TaskConfig()
    return configs


def parse_settings(kind: type[_Settings], value: Mapping[str, Any], *, source: str) -> _Settings:
    """Check settings of a dataclass that are no part of a recipe.

    Raises:
        ConfigError: There are mistakes; all of them are listed.
    """
    mistakes: list[str] = []
    found: _Settings = _checked(kind, value, mistakes, path=source)
    if mistakes:
        raise ConfigError(source, dict.fromkeys(mistakes))
    return found


@cache  # pydantic takes milliseconds to make one, and a recipe has a dozen sections
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _checked(kind: Any, value: Any, mistakes: list[str], *, path: str) -> Any:
    """Check a value repeatedly, each time without its wrong keys, so that no mistake hides another."""
    while True:
        try:
            return _type_adapter(kind).validate_json(json.dumps(value))
        except ValidationError as error:
            details = error.errors(include_url=False)
            whole = {str(detail["loc"][0]): int(detail["input"]) for detail in details if _is_whole(detail)}
            if whole:  # `steps: 1e5` is a whole number in everything but notation
                value = value | whole
                continue
            mistakes += dict.fromkeys(_sentence(detail, kind, path=path) for detail in _chosen(details))
            wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
        except ConfigError as error:  # from the checks of a dataclass, which name the setting first
            mistakes += error.mistakes
            wrong = {key for key in value if any(f"{path}.{key}:" in mistake for mistake in error.mistakes)}
        if not isinstance(value, dict) or not wrong & value.keys():
            return None
        value = {key: item for key, item in value.items() if key not in wrong}


def _listed(split: Any) -> Any:
    if not isinstance(split, dict):
        return split
    return {condition: [corpora] if isinstance(corpora, str) else corpora for condition, corpora in split.items()}


def _is_whole(detail: Any) -> bool:
    value = detail["input"]
    return detail["type"] == "int_type" and len(detail["loc"]) == 1 and isinstance(value, float) and value.is_integer()


def _chosen(details: Iterable[Any]) -> list[Any]:
    """Keep only the errors of the most probable type, for a setting that may have several types."""
    chosen = []
    for detail in details:
        branch = next((i for i, part in enumerate(detail["loc"]) if str(part) in _BRANCHES), None)
        if branch is None:
            chosen.append(detail)
        elif detail["type"] not in ("int_type", "tuple_type"):  # one of them fits, but its content is wrong
            chosen.append(detail | {"loc": detail["loc"][:branch] + detail["loc"][branch + 1 :]})
        elif not isinstance(detail["input"], int | list):
            chosen.append(detail | {"loc": detail["loc"][:branch], "type": "labels_type"})
    return chosen


def _sentence(detail: Any, kind: Any, *, path: str) -> str:
    """Turn an error of pydantic into a sentence about the recipe."""
    place = ".".join([path, *map(str, detail["loc"])])
    value = detail["input"]
    if detail["type"] == "unexpected_keyword_argument":
        *outer, key = detail["loc"]
        return f"{place}: unknown key. {suggest(str(key), _keys(kind, outer))}"
    if detail["type"] == "literal_error":
        return f"{place}: {value!r} is not a choice. {suggest(str(value), _quoted(detail['ctx']['expected']))}"
    if detail["type"] in _EXPECTED:
        return f"{place}: expected {_EXPECTED[detail['type']]}, found {describe(value)}."
    if detail["type"] == "missing":
        return f"{place}: missing."
    return f"{place}: {detail['msg'].replace('Input should be', 'should be')}, found {describe(value)}."


def _rank(mistake: str, order: list[str]) -> int:
    section = re.split(r"[.:]", mistake)[0]
    return order.index(section) if section in order else 0


def _keys(kind: Any, outer: Iterable[Any] = ()) -> list[str]:
    """Return the keys of a dataclass, or of the dataclass at a place within it."""
    for part in outer:
        kind = get_type_hints(kind).get(str(part), kind)
    return [item.name for item in fields(kind)]


def _quoted(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _is_name(text: str) -> bool:
    try:
        Condition("check", text)
    except ConditionError:
        return False
    return True


def _names_mistakes(sections: Mapping[str, Any]) -> list[str]:
    """List the mistakes in the names of languages and tasks, and in references to them."""
    mistakes = []
    languages: tuple[str, ...] = sections.get("languages") or ()
    tasks: Mapping[str, TaskConfig] = sections.get("tasks") or {}
    for name, count in Counter(languages).items():
        if count > 1:
            mistakes.append(f"languages: {name!r} is listed {count} times.")
        if not _is_name(name):
            mistakes.append(f"languages: {name!r} is not a name: letters and digits, joined by '.', '_' or '-'.")
    mistakes += [f"tasks.{name}: unknown task. {suggest(name, TASKS)} {HINT}" for name in tasks if name not in TASKS]
    for name, config in tasks.items():
        labels = config.label_names if config else ()
        mistakes += [f"tasks.{name}.labels: {label!r} is listed twice." for label in _repeated(labels)]
        if config and config.labels is not None and name in TASKS and not TASKS[name].needs_labels:
            mistakes.append(f"tasks.{name}.labels: {name} has no label set. Remove it.")
        elif config and config.labels == ():
            mistakes.append(f"tasks.{name}.labels: empty. Leave it out to take the labels of the data.")
    for pattern in sections.get("directions") or ():
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


def _data_mistakes(sections: Mapping[str, Any]) -> list[str]:
    """List the mistakes in the conditions that corpora are listed under, and in slices of corpora."""
    mistakes, data = [], sections.get("data")
    languages, tasks = dict.fromkeys(sections.get("languages") or ()), sections.get("tasks") or {}
    for split in ("train", "validation", "test") if data is not None else ():
        for name, corpora in getattr(data, split).items():
            place = f"data.{split}.{name}"
            try:
                condition = Condition.parse(name)
            except ConditionError as error:
                mistakes.append(f"{place}: {error}")
                continue
            try:
                if condition.task in TASKS:
                    find_task(condition.task).check_languages(condition)
            except ConditionError as error:
                mistakes.append(f"{place}: {error}")
            if condition.task not in tasks:
                mistakes.append(f"{place}: unknown task {condition.task!r}. {suggest(condition.task, tasks)}")
            unknown = [language for language in condition.languages if language not in languages]
            mistakes += [f"{place}: unknown language {name!r}. {suggest(name, languages)}" for name in unknown]
            if not corpora:
                mistakes.append(f"{place}: no corpus. Such as ud:tr_boun/{split}.")
            for corpus in corpora:
                try:
                    parse_slice(corpus)
                except DataError as error:
                    mistakes.append(f"{place}: {error}")
    return mistakes


def _backbone_shape(backbone: BackboneConfig | None, mistakes: list[str]) -> BackboneShape | None:
    """Build the backbone without weights; repeat without the keys that it does not know, to report all of them."""
    if backbone is None:
        return None
    if backbone.name is None and backbone.config is None and backbone.preset is None:
        mistakes.append(f"backbone: neither name nor config is given. {_HINTS['backbone']}")
        return None
    config = backbone.shape
    while config is not None:
        from polyloom.backbones import backbone_from_config  # noqa: PLC0415 - seconds to import

        try:
            shape: BackboneShape = backbone_from_config(config, device="meta").shape
            return shape
        except BackboneError as error:
            mistakes.append(str(error))
            wrong = [key for key in config if str(error).startswith(f"backbone.config.{key}:")]
            config = {key: value for key, value in config.items() if key not in wrong} if wrong else None
        except Exception as error:  # Transformers raises many types on invalid values
            mistakes.append(f"backbone.config: {' '.join(str(error).split())}")
            config = None
    return None


def _fit_mistakes(recipe: Recipe, shape: BackboneShape) -> list[str]:
    """List the settings that do not fit together: method, backbone, languages, stages, training directions."""
    try:
        with empty_modules():
            method = build_method(recipe.method, shape=shape, inventory=recipe.inventory())
    except ConfigError as error:
        return list(error.mistakes)
    except PolyloomError as error:
        return [str(error)]
    names = [stage.name for stage in method.stages()]
    mistakes = [f"stages.{name}: unknown stage. {suggest(name, names)}" for name in recipe.stages if name not in names]
    return mistakes + direction_mistakes(recipe, method)


def direction_mistakes(recipe: Recipe, method: Method) -> list[str]:
    """List the training data of directions that the method stores no weights for."""
    mistakes = []
    for name in recipe.data.train:
        try:
            for condition in method.trained_by(Condition.parse(name)):
                method.pair_row(condition)
        except ConditionError as error:
            mistakes.append(f"data.train.{name}: {error} {recipe.method.name} stores weights for `directions` only.")
    return mistakes
