"""Recipes: their settings, reading and checking."""

from polyloom.config.overrides import apply_overrides
from polyloom.config.parse import direction_mistakes, load_recipe, parse_recipe, recipe_schema, resolved
from polyloom.config.recipe import DataConfig, Recipe, StageConfig, backbone_from_recipe

__all__ = [
    "DataConfig",
    "Recipe",
    "StageConfig",
    "apply_overrides",
    "backbone_from_recipe",
    "direction_mistakes",
    "load_recipe",
    "parse_recipe",
    "recipe_schema",
    "resolved",
]
