"""Read a recipe from YAML and check it; all mistakes are reported at once."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
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
from polyloom.metrics.score import METRICS
from polyloom.nn.empty import empty_modules
from polyloom.recipes import find_file, shipped_recipes
from polyloom.registry import HINT
from polyloom.tasks import TASKS, TaskConfig, find_task
from polyloom.weights import BackboneShape

SPLITS = ("train", "validation", "test")
_HINTS = {
    "backbone": "Such as `backbone: {name: FacebookAI/xlm-roberta-base}`.",
    "method": "Such as `method: {name: hyperx}`.",
    "languages": "Such as `languages: [en, tr, yo]`.",
    "tasks": "Such as `tasks: {mlm: {}, pos: {labels: 17}}`.",
    "stages": "Such as `stages: {languages: {train: {steps: 1000}}}`.",
}
# Names of types in pydantic's messages about JSON, and in the words of YAML that `describe` has for what was found.
_TYPE_NAMES = {
    "an object": "a mapping",
    "a valid array": "a list",
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
}
_Settings = TypeVar("_Settings")


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
    mistakes = [f"{text!r} has a control character." for text in _texts(settings) if not is_printable(text)]
    known = {item.name: item for item in fields(Recipe)}
    mistakes += [f"{key}: unknown key. {suggest(key, known)}" for key in settings if key not in known]

    # Every section is checked by itself, so that no mistake hides one in another section.
    sections: dict[str, Any] = {}
    for name, item in known.items():
        if name == "stages":
            sections[name] = _stages(settings, mistakes)
        elif name not in settings:
            if item.default is MISSING and item.default_factory is MISSING:
                mistakes.append(f"{name}: missing. {_HINTS[name]}")
        elif name in ("languages", "tasks") and settings[name] in ([], {}):
            mistakes.append(f"{name}: empty. {_HINTS[name]}")
        elif name == "method":
            sections[name] = _method(settings[name], mistakes)
        elif name == "tasks":
            # An unknown task, which has no settings to check, is reported with the other names.
            sections[name] = {
                task: _validated(TASKS[task].Config, config, mistakes, path=f"tasks.{task}")
                if task in TASKS
                else TaskConfig()
                for task, config in _mappings(settings[name], mistakes, path="tasks").items()
            }
        else:
            value = settings[name]
            if name == "data":
                value = _list_corpora(expand_languages(value, settings.get("languages")))
            sections[name] = _validated(item.type, value, mistakes, path=name)

    # Then what sections say about one another: names, and how method, backbone and data fit together.
    mistakes += _names_mistakes(sections) + _data_mistakes(sections)
    shape = _backbone_shape(sections.get("backbone"), mistakes)
    if not mistakes:
        recipe = Recipe(**sections)
        if shape is not None:
            mistakes += _fit_mistakes(recipe, shape)
    if mistakes:
        order = ["", *known]  # that of the sections; what belongs to none comes first

        def rank(mistake: str) -> int:
            section = re.split(r"[.:]", mistake)[0]
            return order.index(section) if section in order else 0

        raise ConfigError(source, sorted(dict.fromkeys(mistakes), key=rank))
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


# -- sections ---------------------------------------------------------------------------------------------------------


def expand_languages(data: Any, languages: Any) -> Any:
    """Expand the conditions for every language: ``mlm/*: wikipedia/*.txt`` stands for one corpus per language.

    Languages that the condition names already are left out, and conditions that are written out come first: ``mlm/tr:
    null`` leaves out one of them.
    """
    if not isinstance(data, dict) or not isinstance(languages, list | tuple):
        return data
    expanded_data = dict(data)
    for split in SPLITS:
        if not isinstance(corpora_by_name := data.get(split), dict):
            continue  # missing, or of a wrong type, which is reported with the others
        # Only a star in place of a language makes a pattern; the first part of a condition is its task.
        patterns = {name: corpora for name, corpora in corpora_by_name.items() if "*" in str(name).split("/")[1:]}
        expanded = {name: corpora for name, corpora in corpora_by_name.items() if name not in patterns}
        for pattern, corpora in patterns.items():
            for language in map(str, languages):
                if language in pattern.split("/")[1:]:
                    continue
                name = pattern.replace("*", language)
                if expanded.get(name, corpora) is None:
                    expanded.pop(name, None)
                else:
                    expanded.setdefault(name, _replace_star(corpora, language))
        expanded_data[split] = expanded
    return expanded_data


def _replace_star(corpora: Any, language: str) -> Any:
    if isinstance(corpora, list):
        return [_replace_star(corpus, language) for corpus in corpora]
    return corpora.replace("*", language) if isinstance(corpora, str) else corpora


def _list_corpora(data: Any) -> Any:
    """Turn the name of a single corpus into a list."""
    if not isinstance(data, dict):
        return data
    with_lists = dict(data)
    for split in SPLITS:
        if isinstance(corpora := data.get(split), dict):
            with_lists[split] = {name: [value] if isinstance(value, str) else value for name, value in corpora.items()}
    return with_lists


def _stages(settings: Mapping[str, Any], mistakes: list[str]) -> dict[str, StageConfig]:
    """Check the sections of each stage, merged with those of the whole recipe."""
    configs = {}
    for name, stage in _mappings(settings.get("stages", {}), mistakes, path="stages").items():
        known = {item.name: item for item in fields(StageConfig)}
        mistakes += [f"stages.{name}.{key}: unknown key. {suggest(key, known)}" for key in stage if key not in known]
        sections = {}
        for section, item in known.items():
            everywhere, here = settings.get(section, {}), stage.get(section, {})
            # Another strategy of the mixture has other settings, so nothing is taken from the recipe's.
            if isinstance(everywhere, dict) and isinstance(here, dict) and "strategy" not in here:
                here = everywhere | here
            sections[section] = _validated(item.type, here, mistakes, path=f"stages.{name}.{section}")
        configs[name] = StageConfig(**sections)
    return configs


def _method(value: Any, mistakes: list[str]) -> Any:
    """Check the settings of the named method; if its name is unknown, of the method with the most similar name."""
    settings = _validated(dict[str, Any], value, mistakes, path="method")
    if settings is None:
        return None
    name = settings.pop("name", None)
    if name is None:
        mistakes.append(f"method.name: missing. {suggest('', METHODS)}")
        return None
    if not isinstance(name, str) or name not in METHODS:
        mistakes.append(f"method.name: unknown method {name!r}. {suggest(str(name), METHODS)} {HINT}")
        similar = get_close_matches(str(name), METHODS, n=1)
        if not similar:
            return None
        name = similar[0]
    return _validated(METHODS[name].config_type, settings, mistakes, path="method")


# -- one section by pydantic ------------------------------------------------------------------------------------------


def parse_settings(kind: type[_Settings], value: Mapping[str, Any], *, source: str) -> _Settings:
    """Check settings of a dataclass that are no part of a recipe.

    Raises:
        ConfigError: There are mistakes; all of them are listed.
    """
    mistakes: list[str] = []
    settings: _Settings = _validated(kind, value, mistakes, path=source)
    if mistakes:
        raise ConfigError(source, dict.fromkeys(mistakes))
    return settings


@cache  # pydantic takes milliseconds to make one, and a recipe has a dozen sections
def _type_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _mappings(value: Any, mistakes: list[str], *, path: str) -> dict[str, dict[str, Any]]:
    """Check that a section has named entries that are mappings; others are reported and left out."""
    mappings: dict[str, dict[str, Any]] | None = _validated(dict[str, dict[str, Any]], value, mistakes, path=path)
    return mappings or {}


def _validated(kind: Any, value: Any, mistakes: list[str], *, path: str) -> Any:
    """Check a value; what is left without its wrong keys is returned, or nothing if it has another type.

    A dataclass checks its settings together only if each of them has the right type, and stops at the first mistake.
    So it is checked again without the wrong ones, until nothing else is wrong.
    """
    while True:
        try:
            # As JSON, which knows lists but no tuples: in strict mode a list of Python's is no tuple.
            return _type_adapter(kind).validate_json(json.dumps(value))
        except ValidationError as error:
            details = error.errors(include_url=False)
            # `steps: 1e5` is a whole number in everything but notation, so it is converted and checked again.
            whole_numbers = {}
            for detail in details:
                number, is_setting = detail["input"], len(detail["loc"]) == 1
                if detail["type"] == "int_type" and is_setting and isinstance(number, float) and number.is_integer():
                    whole_numbers[detail["loc"][0]] = int(number)
            if whole_numbers:
                value = value | whole_numbers
                continue
            mistakes += dict.fromkeys(_sentences(details, value, kind, path=path))
            wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
        except ConfigError as error:  # from the checks of a dataclass, which name the setting first
            mistakes += error.mistakes
            wrong = {key for key in value if any(f"{path}.{key}:" in mistake for mistake in error.mistakes)}
        if not isinstance(value, dict) or not wrong & value.keys():
            return None
        value = {key: item for key, item in value.items() if key not in wrong}


def _sentences(details: Iterable[Any], value: Any, kind: Any, *, path: str) -> Iterator[str]:
    """Turn errors of pydantic into sentences about the recipe, with what was found and what is known."""
    by_place: dict[tuple[str, ...], list[Any]] = {}
    for detail in details:
        keys, inner = [], value
        for part in detail["loc"]:
            # Of a setting with several types, pydantic's place also names the type that it tried, which is no key.
            if (isinstance(inner, dict) and part in inner) or (isinstance(inner, list) and part in range(len(inner))):
                keys.append(str(part))
                inner = inner[part]
            elif detail["type"] == "missing":
                keys.append(str(part))
        by_place.setdefault(tuple(keys), []).append(detail)
    for at, tried in by_place.items():
        if any(other[: len(at)] == at != other for other in by_place):
            continue  # another type fits the setting, and something inside it is wrong
        place, detail, text = ".".join((path, *at)), tried[0], describe(tried[0]["input"])
        if detail["type"] == "unexpected_keyword_argument":
            settings_type = kind  # the dataclass at this place, to suggest one of its settings
            for part in at[:-1]:
                settings_type = get_type_hints(settings_type).get(part, settings_type)
            yield f"{place}: unknown key. {suggest(at[-1], [item.name for item in fields(settings_type)])}"
        elif detail["type"] == "missing":
            yield f"{place}: missing."
        elif detail["type"] == "literal_error":
            choices = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
            yield f"{place}: {detail['input']!r} is not a choice. {suggest(str(detail['input']), choices)}"
        else:
            messages = (d["msg"].removeprefix("Input should be ") for d in tried)
            expected = " or ".join(dict.fromkeys(_TYPE_NAMES.get(message, message) for message in messages))
            yield f"{place}: should be {expected}, found {text}. {_HINTS.get(place, '')}".rstrip()


# -- sections together ------------------------------------------------------------------------------------------------


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _names_mistakes(sections: Mapping[str, Any]) -> list[str]:
    """List the mistakes in the names of languages and tasks, and in references to them."""
    mistakes = []
    languages: tuple[str, ...] = sections.get("languages") or ()
    tasks: Mapping[str, TaskConfig] = sections.get("tasks") or {}
    for name, count in Counter(languages).items():
        if count > 1:
            mistakes.append(f"languages: {name!r} is listed {count} times.")
        try:
            Condition("check", name)  # a name is what can be a part of a condition
        except ConditionError:
            mistakes.append(f"languages: {name!r} is not a name: letters and digits, joined by '.', '_' or '-'.")
    mistakes += [f"tasks.{name}: unknown task. {suggest(name, TASKS)} {HINT}" for name in tasks if name not in TASKS]
    for name, config in tasks.items():
        labels = config.label_names if config else ()
        mistakes += [f"tasks.{name}.labels: {label!r} is listed twice." for label in _repeated(labels)]
        if config and config.labels is not None and name in TASKS and not TASKS[name].needs_labels:
            mistakes.append(f"tasks.{name}.labels: {name} has no label set. Remove it.")
        elif config and config.labels == ():
            mistakes.append(f"tasks.{name}.labels: empty. Leave it out to take the labels of the data.")
        metrics = config.metrics if config and name in TASKS else ()
        mistakes += [f"tasks.{name}.metrics: {metric!r} is listed twice." for metric in _repeated(metrics)]
        for metric in metrics:
            suited = [known for known, described in METRICS.items() if TASKS[name].can_measure(described)]
            place = f"tasks.{name}.metrics: {metric!r}"
            if metric not in METRICS:
                mistakes.append(f"{place}: unknown metric. {suggest(metric, suited)} {HINT}")
            elif metric not in suited:
                mistakes.append(f"{place}: {name} does not count what it needs. {suggest(metric, suited)}")
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
    for split in SPLITS if data is not None else ():
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
    config = backbone.model_config
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
