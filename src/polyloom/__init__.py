"""One multilingual Transformer, many languages and tasks: weights looked up or generated per condition.

Names are imported when they are first used, so that ``import polyloom`` and ``polyloom --help`` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyloom.backbones import Backbone as Backbone
    from polyloom.backbones import Family as Family
    from polyloom.backbones import backbone_from_config as backbone_from_config
    from polyloom.backbones import load_backbone as load_backbone
    from polyloom.backbones import register_family as register_family
    from polyloom.checkpoint import load_checkpoint as load_checkpoint
    from polyloom.checkpoint import save_checkpoint as save_checkpoint
    from polyloom.conditions import Condition as Condition
    from polyloom.config import Recipe as Recipe
    from polyloom.config import load_recipe as load_recipe
    from polyloom.config import parse_recipe as parse_recipe
    from polyloom.data.records import Pair as Pair
    from polyloom.data.records import Tagged as Tagged
    from polyloom.data.records import Text as Text
    from polyloom.data.records import Tree as Tree
    from polyloom.errors import PolyloomError as PolyloomError
    from polyloom.methods import register_method as register_method
    from polyloom.methods.badx import BadXConfig as BadXConfig
    from polyloom.methods.badx import MultilingualConfig as MultilingualConfig
    from polyloom.methods.full import DenseConfig as DenseConfig
    from polyloom.methods.full import FullConfig as FullConfig
    from polyloom.methods.hyper_adapters import HyperAdaptersConfig as HyperAdaptersConfig
    from polyloom.methods.hyperx import HyperXConfig as HyperXConfig
    from polyloom.methods.madx import MadXConfig as MadXConfig
    from polyloom.methods.psf import PsfConfig as PsfConfig
    from polyloom.methods.translation_banks import LangAdaptersConfig as LangAdaptersConfig
    from polyloom.methods.translation_banks import PairAdaptersConfig as PairAdaptersConfig
    from polyloom.metrics import register_metric as register_metric
    from polyloom.model import Model as Model
    from polyloom.version import __version__ as __version__
    from polyloom.weights import Site as Site
    from polyloom.workflows.planning import plan as plan
    from polyloom.workflows.runs import Run as Run
    from polyloom.workflows.runs import load_run as load_run
    from polyloom.workflows.runs import train_recipe as train_recipe

_NAMES = {
    "backbones": "Backbone Family backbone_from_config load_backbone register_family",
    "checkpoint": "load_checkpoint save_checkpoint",
    "config": "Recipe load_recipe parse_recipe",
    "data.records": "Pair Tagged Text Tree",
    "errors": "PolyloomError",
    "methods": "register_method",
    "methods.badx": "BadXConfig MultilingualConfig",
    "methods.full": "DenseConfig FullConfig",
    "methods.hyper_adapters": "HyperAdaptersConfig",
    "methods.hyperx": "HyperXConfig",
    "methods.madx": "MadXConfig",
    "methods.psf": "PsfConfig",
    "methods.translation_banks": "LangAdaptersConfig PairAdaptersConfig",
    "metrics": "register_metric",
    "model": "Model",
    "planning": "plan",
    "runs": "Run load_run train_recipe",
    "types": "Condition Site",
    "version": "__version__",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"polyloom.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_MODULES)
