"""Recipes, and how they are read."""

from polyloom.config.parse import load_recipe, parse_recipe, recipe_schema, resolved
from polyloom.config.recipe import DataConfig, Recipe, StageConfig, TaskConfig, build_backbone

__all__ = [
    "DataConfig",
    "Recipe",
    "StageConfig",
    "TaskConfig",
    "build_backbone",
    "load_recipe",
    "parse_recipe",
    "recipe_schema",
    "resolved",
]
