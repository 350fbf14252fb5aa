"""Load a model that predicts: from a run, from exported adapters, or from a repository of adapters on the Hub."""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from polyloom.backbones import Backbone
from polyloom.checkpoint import MANIFEST, load_checkpoint, read_manifest, read_parts
from polyloom.config import Recipe, load_recipe, parse_recipe
from polyloom.config.build import build_backbone, configure_tasks, find_corpora
from polyloom.data.catalog import Corpus, data_root
from polyloom.data.tokenization.tokenizer import load_hf_tokenizer, load_tokenizer
from polyloom.errors import CheckpointError, ExportError
from polyloom.export.adapter import BACKBONE, backbone_note, load_adapters_into, read_adapter
from polyloom.inference.predictor import Predictor
from polyloom.inference.untrained import TrainedParts
from polyloom.io.access import Access
from polyloom.io.machine_notes import is_local, noted_folder
from polyloom.model import Model
from polyloom.rundir import RunDir

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DEPTHS = ("", "*/", "*/*/", "*/*/*/")  # of adapters in a folder: task/source/target


@dataclass(frozen=True)
class LoadedModel:
    """A model that predicts, and where it was loaded from."""

    path: Path
    """Directory of the run or of the adapters."""
    recipe: Recipe
    """The run's recipe. Of adapters: the backbone, the languages and the tasks."""
    checkpoint: Path
    """The checkpoint that was loaded. Of adapters: their directory."""
    predictor: Predictor
    """The model, ready to predict."""
    trained_on: Sequence[str]
    """Conditions with training data; the others are zero-shot."""
    access: Access
    """Which files the recipe may name."""

    @property
    def model(self) -> Model:
        """The model of the checkpoint, an ordinary `torch.nn.Module`."""
        return self.predictor.model

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of Transformers that the model was trained with."""
        return load_hf_tokenizer(self.recipe.backbone.tokenizer_name)

    @cached_property
    def trained_parts(self) -> TrainedParts:
        """The tasks, pairs and languages that training data have changed."""
        return TrainedParts(self.model.method, self.trained_on)

    def resolve(self, names: Iterable[str]) -> list[Corpus]:
        """Find corpora of the recipe by their names; raise an error for files that the run may not read."""
        return find_corpora(self.recipe.data, names, check=self.access.require)


def load_source(source: str | Path, *, checkpoint: str | None = None, device: str | None = None) -> LoadedModel:
    """Load a run, an exported adapter, a folder of adapters, or a repository of adapters on the Hub (``owner/name``).

    Args:
        source: A directory, or the name of a repository on the Hugging Face Hub, which is downloaded once.
        checkpoint: Of a run, the name of a checkpoint such as ``step-00000200``. Default: the best one.
        device: Such as ``cpu``. By default a GPU if there is one.
    """
    path = Path(source)
    if RunDir(path).exists():
        return load_run_dir(path, checkpoint=checkpoint, device=device)
    if checkpoint is not None:
        raise CheckpointError(f"{path}: not a run, so it has no checkpoint {checkpoint!r} to choose.")
    if not path.exists() and _HUB_ID.fullmatch(str(source)):
        from polyloom.export.hub import download  # noqa: PLC0415 - a second to import

        try:
            path = download(str(source))
        except ExportError as error:
            what = f"no such folder, and no such repository could be downloaded: {error}"
            raise CheckpointError(f"{source}: {what}") from error
    return _load_adapters(path, device=device)


def load_predictor(source: str | Path) -> Predictor:
    """Load the model of a run or of exported adapters, ready to predict."""
    return load_source(source).predictor


def load_run_dir(path: str | Path, *, checkpoint: str | None = None, device: str | None = None) -> LoadedModel:
    """Load a checkpoint of a run, by default the best one."""
    directory = RunDir(path)
    directory.require()
    recipe, chosen = load_recipe(directory.recipe), directory.choose(checkpoint)

    # A run with added tokens has its own backbone in its directory, also after the directory was moved.
    name, own = Path(recipe.backbone.name or ""), directory.backbone
    if name.name == own.name and name.is_absolute() and not name.exists() and own.is_dir():
        recipe = replace(recipe, backbone=replace(recipe.backbone, name=str(own.resolve())))

    access = access_to(directory)
    for folder in (recipe.backbone.name, recipe.backbone.tokenizer):
        if folder is not None and Path(folder).exists():  # else it is the name of one on the Hub
            access.require(Path(folder))
    with directory.advising():
        return load_run_checkpoint(directory.path, recipe, chosen, device=device)


def access_to(directory: RunDir) -> Access:
    """Return what a run may read: everything if this user trained it, else its own folder and the data root."""
    return Access(directory.path, None if directory.is_own() else (directory.path, data_root()))


def load_run_checkpoint(
    path: Path, recipe: Recipe, checkpoint: Path, *, device: str | None = None, extended: bool = False
) -> LoadedModel:
    """Load a checkpoint on the backbone that the recipe names.

    Args:
        path: Directory of the run.
        recipe: Its recipe.
        checkpoint: One of its checkpoints.
        device: Such as ``cpu``. By default a GPU if there is one.
        extended: Whether the backbone is the one of the run with tokens added to it.
    """
    manifest = read_manifest(checkpoint)
    tokenizers = [] if extended else [manifest.get("tokenizer")]
    with ThreadPoolExecutor(1) as thread:  # reads and hashes the weights while the backbone is built
        parts = thread.submit(read_parts, checkpoint)

        def build(backbone: Backbone) -> Model:
            return load_checkpoint(checkpoint, backbone, same_backbone=not extended, parts=parts.result())

        predictor = _build_predictor(recipe, build, tokenizers, place=checkpoint, device=device)
    return LoadedModel(path, recipe, checkpoint, predictor, manifest["trained_on"], access_to(RunDir(path)))


def _build_predictor(
    recipe: Recipe,
    build: Callable[[Backbone], Model],
    tokenizers: Iterable[object],
    *,
    place: Path,
    device: str | None,
) -> Predictor:
    """Build tokenizer, backbone and model; raise an error if the model was trained with another tokenizer."""
    tokenizer = load_tokenizer(recipe.backbone.tokenizer_name)
    if any(identity != tokenizer.identity for identity in tokenizers):
        raise CheckpointError(
            f"{place}: was trained with another tokenizer than {recipe.backbone.tokenizer_name}. With this one its "
            "predictions would be wrong."
        )
    model = build(build_backbone(recipe.backbone, tokenizer, seed=recipe.train.seed)).eval()
    configure_tasks(
        model, recipe.tasks, tokenizer, pretrained=recipe.backbone.name is not None,
        conditions=(*recipe.data.train, *recipe.data.validation),
    )  # fmt: skip
    model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Predictor(model, tokenizer=tokenizer, max_length=recipe.train.max_length)


# -- exported adapters ------------------------------------------------------------------------------------------------


def _load_adapters(path: Path, *, device: str | None) -> LoadedModel:
    """Load one exported adapter, or all in a folder, as one model; they must be for the same backbone."""
    manifests = [file for depth in _DEPTHS for file in path.glob(depth + MANIFEST)]
    # Names with a dot belong to an export that is under way, or was killed.
    hidden = [file for file in manifests if any(part.startswith(".") for part in file.relative_to(path).parts)]
    folders = sorted(file.parent for file in manifests if file not in hidden)
    if not folders:
        raise CheckpointError(
            f"{path}: neither a run ({RunDir(path).recipe.name}) nor an exported adapter ({MANIFEST}) is here."
        )
    adapters = [read_adapter(folder) for folder in folders]
    lengths = [adapter.about["max_length"] for adapter in adapters if adapter.about.get("max_length")]
    if any(length != lengths[0] for length in lengths):
        raise CheckpointError(f"{path}: adapters with different `max_length`. Load them one by one.")

    # An export of several adapters has its backbone beside the folders of tasks and languages.
    depths = [str(adapter.condition).count("/") for adapter in adapters]
    beside = [folder.resolve().parents[depth] / BACKBONE for folder, depth in zip(folders, depths, strict=True)]
    access = Access(path, (path, *beside))

    # The adapters say what a recipe would. It is checked as any recipe is, since the files may be untrusted.
    first, about = folders[0], adapters[0].about
    if not isinstance(about.get("settings"), dict):
        raise CheckpointError(f"{first}: does not say which backbone it is for.")
    backbone_settings, tokenizer = dict(about["settings"]), str(about.get("tokenizer"))
    for key, content in (("name", backbone_note(adapters[0].identity)), ("tokenizer", tokenizer)):
        if isinstance(backbone_settings.get(key), str):
            backbone_settings[key] = _find_folder(backbone_settings[key], first, access, content)
    languages = dict.fromkeys(language for adapter in adapters for language in adapter.condition.languages)
    settings = {
        "backbone": backbone_settings,
        "method": {"name": "full"},
        "languages": list(languages),
        "tasks": {adapter.condition.task: dict(adapter.settings) for adapter in adapters},
        "train": {"max_length": lengths[0]} if lengths else {},
    }
    recipe = parse_recipe(settings, source=str(first))

    def build(backbone: Backbone) -> Model:
        return load_adapters_into(adapters, backbone, list(map(str, folders)))

    tokenizers = [adapter.about.get("tokenizer") for adapter in adapters]
    predictor = _build_predictor(recipe, build, tokenizers, place=path, device=device)
    trained_on = [str(adapter.condition) for adapter in adapters if not adapter.about.get("zero_shot")]
    return LoadedModel(path, recipe, path, predictor, trained_on, access)


def _find_folder(name: str, folder: Path, access: Access, content: str) -> str:
    """Return the path of a backbone or tokenizer that an adapter in `folder` names; names on the Hub are kept.

    First what was exported with the adapter, then what this machine has noted of the same content, then the name.
    """
    if (folder / name).is_dir():
        access.require(folder / name)
        return str((folder / name).resolve())
    if noted := noted_folder(content):
        return str(noted)
    if not is_local(name):
        if Path(name).exists():
            access.require(Path(name))
        return name
    raise CheckpointError(
        f"{folder}: is for a backbone in a local folder, {name!r}, which is not known on this machine. Copy it to "
        f"{folder / name}, or export with --backbone."
    )
