"""Override single settings of a recipe."""

from collections.abc import Mapping
from typing import Any

from polyloom.errors import ConfigError
from polyloom.io.yaml import describe


def apply_overrides(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with overrides applied, by dotted names: ``{"optim.lr": 1e-4}``."""
    changed = dict(settings)
    for path, value in overrides.items():
        *sections, last = path.split(".")
        section = changed
        for depth, key in enumerate(sections, start=1):
            inner = section.get(key)
            if not isinstance(inner, Mapping | None):
                place = ".".join(sections[:depth])
                raise ConfigError("overrides", [f"{path}: {place} is {describe(inner)}, so it has no keys to set."])
            section[key] = section = dict(inner or {})
        section[last] = value
    drop_stale_config(changed, settings)
    return changed


def drop_stale_config(settings: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Drop the configuration of the former backbone if an override names another backbone."""
    backbone, former = settings.get("backbone"), before.get("backbone")
    if isinstance(backbone, dict) and isinstance(former, Mapping) and backbone.get("name") != former.get("name"):
        for key in ("config", "preset"):
            if backbone.get(key) == former.get(key):
                backbone.pop(key, None)
