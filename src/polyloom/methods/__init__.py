"""Every method, by the name that recipes use."""

from polyloom.conditions import Inventory
from polyloom.methods.badx import BadX, Multilingual
from polyloom.methods.base import Method, MethodConfig
from polyloom.methods.full import Dense, Full
from polyloom.methods.hyper_adapters import HyperAdapters
from polyloom.methods.hyperx import HyperX
from polyloom.methods.madx import MadX
from polyloom.methods.psf import Psf
from polyloom.methods.translation_banks import LangAdapters, PairAdapters
from polyloom.weights import BackboneShape

METHODS: dict[str, type[Method]] = {
    method.config_type.name: method
    for method in (Full, Dense, MadX, BadX, Multilingual, HyperX, HyperAdapters, LangAdapters, PairAdapters, Psf)
}

__all__ = ["METHODS", "Method", "MethodConfig", "build_method"]


def build_method(config: MethodConfig, *, shape: BackboneShape, inventory: Inventory) -> Method:
    """Build the method that a config belongs to."""
    return METHODS[config.name](config, shape=shape, inventory=inventory)
