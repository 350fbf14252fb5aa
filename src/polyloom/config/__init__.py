"""Recipes: their settings, reading and checking."""

from polyloom.config.overrides import apply_overrides
from polyloom.config.parse import direction_mistakes, load_recipe, parse_recipe, resolved
from polyloom.config.recipe import BackboneConfig, DataConfig, Recipe, StageConfig
from polyloom.config.schema import recipe_schema

__all__ = [
    "BackboneConfig",
    "DataConfig",
    "Recipe",
    "StageConfig",
    "apply_overrides",
    "direction_mistakes",
    "load_recipe",
    "parse_recipe",
    "recipe_schema",
    "resolved",
]
