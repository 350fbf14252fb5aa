"""The registry of methods, by the name that recipes use."""

from polyloom.conditions import Inventory
from polyloom.methods.badx import BadX, Multilingual
from polyloom.methods.base import Method, MethodConfig
from polyloom.methods.full import Dense, Full
from polyloom.methods.hyper_adapters import HyperAdapters
from polyloom.methods.hyper_stack import HyperStack
from polyloom.methods.hyperx import HyperX
from polyloom.methods.madx import MadX
from polyloom.methods.psf import Psf
from polyloom.methods.translation_banks import LangAdapters, PairAdapters
from polyloom.registry import Registry
from polyloom.weights import BackboneShape

METHODS: Registry[type[Method]] = Registry("method")


def register_method(method: type[Method]) -> type[Method]:
    """Register a method under the name of its config; usable as a decorator."""
    return METHODS.register(method.config_type.name, method)


for _method in (
    Full,
    Dense,
    MadX,
    BadX,
    Multilingual,
    HyperX,
    HyperAdapters,
    HyperStack,
    LangAdapters,
    PairAdapters,
    Psf,
):
    register_method(_method)

__all__ = ["METHODS", "Method", "MethodConfig", "build_method", "register_method"]


def build_method(config: MethodConfig, *, shape: BackboneShape, inventory: Inventory) -> Method:
    """Build the method that a config belongs to."""
    return METHODS[config.name](config, shape=shape, inventory=inventory)
