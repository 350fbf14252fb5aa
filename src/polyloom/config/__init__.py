"""Recipes, and how they are read."""

from polyloom.config.parse import load_recipe, parse_recipe, recipe_schema, resolved
from polyloom.config.recipe import DataConfig, Recipe, StageConfig, backbone_from_recipe

__all__ = [
    "DataConfig",
    "Recipe",
    "StageConfig",
    "backbone_from_recipe",
    "load_recipe",
    "parse_recipe",
    "recipe_schema",
    "resolved",
]
