"""One multilingual Transformer, many languages and tasks: weights looked up or generated per condition.

``import polyloom as pl`` gives every public name. They are imported when they are first used, so that ``import
polyloom`` and ``polyloom --help`` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyloom.backbones import Family as Family
    from polyloom.backbones import backbone_from_config as backbone_from_config
    from polyloom.backbones import load_backbone as load_backbone
    from polyloom.backbones import register_family as register_family
    from polyloom.checkpoint import load_checkpoint as load_checkpoint
    from polyloom.checkpoint import save_checkpoint as save_checkpoint
    from polyloom.client import connect as connect
    from polyloom.conditions import Condition as Condition
    from polyloom.config import Recipe as Recipe
    from polyloom.config import load_recipe as load_recipe
    from polyloom.config import parse_recipe as parse_recipe
    from polyloom.data.kinds import register_record as register_record
    from polyloom.data.readers.formats import register_reader as register_reader
    from polyloom.data.records import Answer as Answer
    from polyloom.data.records import Choices as Choices
    from polyloom.data.records import LabelledText as LabelledText
    from polyloom.data.records import Pair as Pair
    from polyloom.data.records import Question as Question
    from polyloom.data.records import Tagged as Tagged
    from polyloom.data.records import Text as Text
    from polyloom.data.records import Tree as Tree
    from polyloom.errors import PolyloomError as PolyloomError
    from polyloom.errors import PolyloomWarning as PolyloomWarning
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
    from polyloom.nn.blocks import register_block as register_block
    from polyloom.tasks import register_task as register_task
    from polyloom.version import __version__ as __version__
    from polyloom.workflows.compare import compare as compare
    from polyloom.workflows.planning import plan as plan
    from polyloom.workflows.run import Run as Run
    from polyloom.workflows.run import load as load
    from polyloom.workflows.train import train as train

# The public names, by the module that defines them.
_PUBLIC = {
    "workflows.train": ("train",),
    "workflows.run": ("Run", "load"),
    "client": ("connect",),
    "workflows.compare": ("compare",),
    "workflows.planning": ("plan",),
    "config": ("Recipe", "load_recipe", "parse_recipe"),
    "model": ("Model",),
    "backbones": ("Family", "backbone_from_config", "load_backbone", "register_family"),
    "checkpoint": ("load_checkpoint", "save_checkpoint"),
    "conditions": ("Condition",),
    "methods": ("register_method",),
    "metrics": ("register_metric",),
    "nn.blocks": ("register_block",),
    "tasks": ("register_task",),
    "data.kinds": ("register_record",),
    "data.readers.formats": ("register_reader",),
    "data.records": ("Answer", "Choices", "LabelledText", "Pair", "Question", "Tagged", "Text", "Tree"),
    "errors": ("PolyloomError", "PolyloomWarning"),
    "methods.badx": ("BadXConfig", "MultilingualConfig"),
    "methods.full": ("DenseConfig", "FullConfig"),
    "methods.hyper_adapters": ("HyperAdaptersConfig",),
    "methods.hyperx": ("HyperXConfig",),
    "methods.madx": ("MadXConfig",),
    "methods.psf": ("PsfConfig",),
    "methods.translation_banks": ("LangAdaptersConfig", "PairAdaptersConfig"),
    "version": ("__version__",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = [*_MODULES]  # noqa: PLE0604 - the keys are names


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"polyloom.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'polyloom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
