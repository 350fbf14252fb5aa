"""Between runs and the rest of the world: a run's adapters as files, and files of any kind as what answers."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from polyloom.backbones import Backbone
from polyloom.checkpoint import MANIFEST, backbone_fingerprint
from polyloom.conditions import Condition
from polyloom.config import Recipe, parse_recipe
from polyloom.data.catalog import resolve
from polyloom.data.tokenization.tokenizer import save_tokenizer
from polyloom.errors import CheckpointError, ExportError, PolyloomError
from polyloom.evaluate.saved import read_stored
from polyloom.export.adapter import Adapter, generate_adapters, load_adapters_into, read_adapter, write_adapter
from polyloom.export.adapterhub import read_adapterhub, write_adapterhub
from polyloom.export.card import card
from polyloom.export.onnx import write_onnx
from polyloom.export.peft import CONFIG, read_peft, write_peft
from polyloom.export.storage import read_json
from polyloom.inference.predictor import Predictor
from polyloom.rundir import RECIPE
from polyloom.tasks import TASKS, find_task
from polyloom.workflows.runs import Run, build_backbone, build_tokenizer, configure_tasks, load_run

Format = Literal["polyloom", "adapterhub", "peft", "onnx", "onnx-baked"]
Progress = Callable[[Path], None]
BACKBONE = "backbone"


def export_run(
    run: Run,
    conditions: Sequence[Condition],
    into: Path,
    *,
    to: Format = "polyloom",
    backbone: bool = False,
    progress: Progress = lambda _: None,
) -> list[Path]:
    """Write the adapters of conditions.

    Args:
        run: A trained run.
        conditions: One goes into `into` itself, of several each into ``task/language`` below.
        into: A new directory.
        to: Whose format.
        backbone: Also write the backbone, with all that was trained in it; the adapters are then for that one.
        progress: Hears of every directory written.
    """
    if into.exists():
        raise ExportError(f"{into}: exists already. Choose another name or remove it.")
    graph = to in ("onnx", "onnx-baked")  # which has the backbone in it
    if not (backbone or graph) and any("backbone" in stage.trains for stage in run.model.method.stages()):
        raise ExportError(
            f"{run.path}: {run.recipe.method.name} trained the whole backbone, so an adapter is of no use without it. "
            "Add --backbone, which writes it once beside the adapters."
        )
    for condition in conditions:
        run.model.task(condition.task)
        run.model.method.require_supported(condition)
    if graph:
        progress(write_onnx(run.model, conditions, into, baked=to == "onnx-baked"))
        return [into]
    if backbone:
        save_backbone(run, into / BACKBONE)
    about, known, written = _about(run), _scores(run), []
    for adapter in generate_adapters(run.model, conditions, whole=not backbone):
        condition = adapter.condition
        path = into if len(conditions) == 1 and not backbone else into.joinpath(*str(condition).split("/"))
        own = about | {"scores": known.get(str(condition), [])}
        if backbone:
            name = os.path.relpath(into / BACKBONE, path)
            own |= {"backbone": name, "settings": {"name": name, "dtype": run.recipe.backbone.dtype}}
        write(replace(adapter, about=own), run.model.backbone, path, to=to)
        written.append(path)
        progress(path)
    return written


def write(adapter: Adapter, backbone: Backbone, path: Path, *, to: Format = "polyloom") -> None:
    """Write one adapter in a format, with its card."""
    if to == "polyloom":
        write_adapter(adapter, path, card=card(adapter, to=to, path=path.name))
        return
    if to == "adapterhub":
        folders = [str(folder.relative_to(path.parent)) for folder in write_adapterhub(adapter, backbone.shape, path)]
    else:
        folders = [str(write_peft(adapter, backbone, path).relative_to(path.parent))]
    text = card(adapter, to=to, path=path.name, folders=folders)
    (path / "README.md").write_text(text, encoding="utf-8")


def save_backbone(run: Run, into: Path) -> None:
    """Write a run's backbone as it is now, with its tokenizer, as an ordinary model of Transformers."""
    run.model.backbone.model.save_pretrained(into)
    save_tokenizer(run.recipe.backbone.tokenizer or run.recipe.backbone.name or "", into)


def _about(run: Run) -> dict[str, Any]:
    """What all adapters of a run have in common."""
    settings = {key: value for key, value in asdict(run.recipe.backbone).items() if value is not None}
    return {
        "method": run.recipe.method.name,
        "backbone": run.recipe.backbone.name or run.recipe.backbone.preset or "",
        "settings": settings,
        "tokenizer": run.predictor.tokenizer.fingerprint,
        "max_length": run.predictor.max_length,
        "licences": _licences(run),
    }


def _licences(run: Run) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    root = Path(run.recipe.data.root) if run.recipe.data.root else None
    for name in {name: None for names in run.recipe.data.train.values() for name in names}:
        try:
            found[name] = resolve(name, root=root).licence
        except PolyloomError:  # the corpus is not on this machine
            found[name] = None
    return found


def _scores(run: Run) -> dict[str, list[dict[str, Any]]]:
    try:
        matrix = read_stored(run.path, "test", checkpoint=run.checkpoint.name)
    except PolyloomError:
        return {}
    return {
        str(condition): [
            {"metric": score.metric.name, "value": score.value, "signature": score.signature} for score in result.scores
        ]
        for condition, result in matrix.results.items()
    }


# -- back from files --------------------------------------------------------------------------------------------------


def load_predictor(path: Path) -> Predictor:
    """What answers in a directory: a run, an exported adapter, or a folder of them."""
    if (path / RECIPE).exists():
        return load_run(path).predictor
    depths = ("", "*/", "*/*/", "*/*/*/")
    folders = sorted(file.parent for depth in depths for file in path.glob(depth + MANIFEST))
    if not folders:
        raise CheckpointError(f"{path}: neither a run ({RECIPE}) nor an exported adapter ({MANIFEST}) is here.")
    adapters = [read_adapter(folder) for folder in folders]
    recipe = _recipe(adapters, folders[0])
    tokenizer = build_tokenizer(recipe)
    if any(adapter.about.get("tokenizer") != tokenizer.fingerprint for adapter in adapters):
        raise CheckpointError(f"{path}: was made with another tokenizer; with this one it would answer wrongly.")
    model = load_adapters_into(adapters, build_backbone(recipe, tokenizer), str(path))
    configure_tasks(model, recipe, tokenizer)
    return Predictor(model, tokenizer=tokenizer, max_length=recipe.train.max_length)


def _recipe(adapters: Sequence[Adapter], folder: Path) -> Recipe:
    """What is needed to load the backbone and tokenizer of adapters, checked as any recipe is."""
    about = adapters[0].about
    settings = about.get("settings")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{folder}: does not say which backbone it is for.")
    settings = dict(settings)
    for key in ("name", "tokenizer"):
        if isinstance(settings.get(key), str) and (folder / settings[key]).is_dir():
            settings[key] = str((folder / settings[key]).resolve())
    languages = dict.fromkeys(language for adapter in adapters for language in adapter.condition.languages)
    # Adapters of 0.1.0.dev0 have the settings of translation under other names, beside those of the run.
    former = {"marks": "language_tokens", "token_of": "language_token_aliases"}
    tokens = {former.get(key, key): about[key] for key in (*former, *former.values()) if about.get(key)}
    tasks = {}
    for adapter in adapters:
        name = adapter.condition.task
        known = {item.name for item in fields(find_task(name).Config)} if name in TASKS else set()
        tasks[name] = {key: value for key, value in tokens.items() if key in known} | dict(adapter.settings)
    plain = {
        "backbone": settings, "method": {"name": "full"}, "languages": list(languages), "tasks": tasks,
        "train": {"max_length": about.get("max_length")} if about.get("max_length") else {},
    }  # fmt: skip
    return parse_recipe(plain, source=str(folder))


def import_adapter(
    folders: Sequence[Path], condition: Condition, into: Path, *, backbone: str, labels: Sequence[str] = ()
) -> Path:
    """Read an adapter of another library and write it as one of ours.

    Args:
        folders: One, or several that act one after the other, such as a language's and a task's.
        condition: What it is for.
        into: A new directory.
        backbone: Name or directory of the model that it is for.
        labels: Of the classifier, in order, where the files do not name them.
    """
    plain: dict[str, Any] = {
        "backbone": {"name": backbone}, "method": {"name": "full"}, "languages": list(condition.languages),
        "tasks": {condition.task: {}},
    }  # fmt: skip
    recipe = parse_recipe(plain, source="import")
    tokenizer = build_tokenizer(recipe)
    loaded = build_backbone(recipe, tokenizer)
    if "peft_type" in read_json(folders[0] / CONFIG):
        if len(folders) > 1:
            raise ExportError("import: LoRAs of PEFT do not act one after the other; give one.")
        adapter = read_peft(folders[0], condition, loaded, labels=tuple(labels))
    else:
        adapter = read_adapterhub(list(folders), condition, loaded.shape)
    settings = {"name": str(Path(backbone).resolve()) if Path(backbone).is_dir() else backbone}
    about = dict(adapter.about) | {"backbone": backbone, "settings": settings, "tokenizer": tokenizer.fingerprint}
    adapter = replace(adapter, identity=backbone_fingerprint(loaded, ()), about=about)
    load_adapters_into([adapter], loaded, str(folders[0]))  # shapes are checked before anything is written
    write(adapter, loaded, into)
    return into
