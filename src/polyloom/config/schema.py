"""The JSON schema of recipes, for editors that complete and check YAML."""

from dataclasses import is_dataclass
from typing import Any

from pydantic import TypeAdapter

from polyloom.config.recipe import Recipe
from polyloom.methods import METHODS
from polyloom.methods.base import layer_blocks
from polyloom.tasks import TASKS


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes."""
    schema = TypeAdapter(Recipe).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Polyloom recipe"

    # The settings of a method depend on its name, those of a task on its key.
    schema["$defs"].pop("MethodConfig", None)
    schema["$defs"].pop("TaskConfig", None)
    choices = []
    for name, method in METHODS.items():
        choice = _settings_schema(method.config_type)
        constant = {"const": name, "description": method.summary}
        choice["properties"] = {"name": constant} | choice.get("properties", {})
        choice["required"] = ["name", *choice.get("required", [])]
        if "block" in choice["properties"]:
            choice["properties"]["block"]["enum"] = layer_blocks()
        choices.append(choice)
    schema["properties"]["method"] |= {"oneOf": choices}
    schema["properties"]["method"].pop("$ref", None)
    tasks = {name: _settings_schema(task.Config) for name, task in TASKS.items()}
    for name, task in TASKS.items():
        tasks[name]["description"] = task.summary
    schema["properties"]["tasks"] |= {"properties": tasks, "additionalProperties": False, "minProperties": 1}

    schema["properties"]["languages"] |= {"minItems": 1, "uniqueItems": True}
    # One corpus need not be a list.
    for split in ("train", "validation", "test"):
        corpora = schema["$defs"]["DataConfig"]["properties"][split]["additionalProperties"]
        schema["$defs"]["DataConfig"]["properties"][split]["additionalProperties"] = {
            "anyOf": [{"type": "string"}, corpora]
        }
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
