"""Transformers models with hooks that apply weights at their sites. No model code is copied."""

from polyloom.backbones.backbone import Backbone
from polyloom.backbones.families import FAMILIES, Family, register_family
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
