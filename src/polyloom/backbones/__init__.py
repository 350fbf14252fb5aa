"""Transformers models with hooks that apply weights at their sites. No model code is copied.

The table of families is imported at once; modules that need Transformers, which takes seconds, on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyloom.backbones.families import FAMILIES, Family, register_family

if TYPE_CHECKING:
    from polyloom.backbones.backbone import Backbone
    from polyloom.backbones.identity import check_identity, identity_of
    from polyloom.backbones.load import backbone_from_config, extend_backbone, load_backbone

__all__ = [
    "FAMILIES",
    "Backbone",
    "Family",
    "backbone_from_config",
    "check_identity",
    "extend_backbone",
    "identity_of",
    "load_backbone",
    "register_family",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"Backbone": "backbone", "check_identity": "identity", "identity_of": "identity"}.get(name, "load")
    return getattr(import_module(f"{__name__}.{module}"), name)
