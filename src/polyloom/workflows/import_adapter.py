"""Import an adapter of AdapterHub or PEFT."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyloom.backbones import identity_of
from polyloom.conditions import Condition
from polyloom.config import parse_recipe
from polyloom.config.build import build_backbone
from polyloom.data.tokenization.tokenizer import load_tokenizer
from polyloom.errors import ExportError
from polyloom.export.adapter import backbone_note, load_adapters_into, write_adapter
from polyloom.export.adapterhub import read_adapterhub
from polyloom.export.card import card
from polyloom.export.peft import CONFIG, read_peft
from polyloom.export.storage import read_json
from polyloom.io.machine_notes import last_name, local_name, note_folder


def import_adapter(
    folders: Sequence[Path], condition: Condition, into: Path, *, backbone: str, labels: Sequence[str] = ()
) -> Path:
    """Read an adapter of another library and write it in Polyloom's format.

    Args:
        folders: One adapter, or several that are applied one after the other, such as a language's and a task's.
        condition: The condition that it is for.
        into: A new directory.
        backbone: Name or directory of the model that it is for.
        labels: Labels of the classifier in order, if the files do not name them.
    """
    plain: dict[str, Any] = {
        "backbone": {"name": backbone}, "method": {"name": "full"}, "languages": list(condition.languages),
        "tasks": {condition.task: {}},
    }  # fmt: skip
    recipe = parse_recipe(plain, source="import")
    tokenizer = load_tokenizer(recipe.backbone.tokenizer_name)
    loaded = build_backbone(recipe.backbone, tokenizer, seed=recipe.train.seed)
    if "peft_type" in read_json(folders[0] / CONFIG):
        if len(folders) > 1:
            raise ExportError("import: LoRAs of PEFT are not applied one after the other; give one.")
        adapter = read_peft(folders[0], condition, loaded, labels=tuple(labels))
    else:
        adapter = read_adapterhub(list(folders), condition, loaded.shape)
    about = dict(adapter.about) | {
        "imported": [folder.resolve().name for folder in folders], "backbone": last_name(backbone),
        "settings": {"name": local_name(backbone)}, "tokenizer": tokenizer.identity,
    }  # fmt: skip
    adapter = replace(adapter, identity=identity_of(loaded), about=about)
    load_adapters_into([adapter], loaded, [str(folders[0])])  # shapes are checked before anything is written
    write_adapter(adapter, into, card=card(adapter, file_format="polyloom", path=into.name))
    note_folder(backbone_note(adapter.identity), backbone)
    return into
