"""Transformers models with hooks that apply weights at their sites. No model code is copied.

The table of families is imported at once; modules that need Transformers, which takes seconds, on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyloom.backbones.families import FAMILIES, Family, register_family

if TYPE_CHECKING:
    from polyloom.backbones.backbone import Backbone
    from polyloom.backbones.load import backbone_from_config, extend_backbone, load_backbone

__all__ = [
    "FAMILIES",
    "Backbone",
    "Family",
    "backbone_from_config",
    "extend_backbone",
    "load_backbone",
    "register_family",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'backbone' if name == 'Backbone' else 'load'}"), name)
