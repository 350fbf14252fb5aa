"""Adapters as files for another server, such as vLLM: each is generated when it is first asked for."""

import os
import shutil
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyloom.checkpoint import trained_parameters
from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.adapter import Adapter
from polyloom.export.peft import write_peft
from polyloom.io.atomic import remove_partial
from polyloom.serve.models import ServedModel

KEPT = 60.0  # seconds in which a folder stays after it was asked for: whoever asked reads it


@dataclass
class AdapterFiles:
    """A folder with the LoRAs of conditions in PEFT's format, bounded in size.

    A folder of an adapter is named by the hash of its weights, and appears whole or not at all. The folder should be in
    memory (``/dev/shm``): adapters are made again in milliseconds.

    Attributes:
        folder: The folder.
        base_name: What the other server calls the model that the adapters are for. Default: the run's own name for it.
        max_mb: Megabytes of all adapters. The ones that were not asked for longest are removed first.
    """

    folder: Path
    base_name: str | None = None
    max_mb: int = 1024
    _asked: "OrderedDict[str, tuple[float, int]]" = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        remove_partial(self.folder)
        for old in sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime):
            self._asked[old.name] = (0.0, _size(old))

    def find(self, model: ServedModel, condition: Condition) -> dict[str, Any]:
        """Return the folder of an adapter, which is written if it is not there; several threads may ask."""
        name = model.weights_hash(condition)
        path = self.folder / name
        with self._lock:
            if not path.exists():
                self._write(model, condition, path)
            self._asked[name] = (time.monotonic(), _size(path))
            self._asked.move_to_end(name)
            self._make_room()
        return {
            "condition": str(condition), "path": str(path.resolve()), "weights": name, "model": model.name,
            "version": model.version,
        }  # fmt: skip

    def _write(self, model: ServedModel, condition: Condition, path: Path) -> None:
        if not model.task(condition).uses_lm_head:
            raise ExportError(f"{condition}: has a head of its own, which no file for a language model can hold.")
        trained = [name for name in trained_parameters(model.run.model) if name.startswith("backbone.")]
        with torch.inference_mode():
            weights = model.run.model.method.weights([condition])
        about = {"backbone": self.base_name or model.run.recipe.backbone.name or ""}
        adapter = Adapter(condition, weights, about=about, needs_trained_backbone=bool(trained))
        write_peft(adapter, model.run.model.backbone, path)

    def _make_room(self) -> None:
        """Remove folders that were not asked for longest; those of the last minute stay."""
        total = sum(size for _, size in self._asked.values())
        for name, (asked, size) in list(self._asked.items()):
            if total <= self.max_mb << 20 or time.monotonic() - asked < KEPT:
                return
            # Renamed first: nobody finds half of a folder.
            gone = self.folder / f".removed-{name}-{os.getpid()}"
            (self.folder / name).rename(gone)
            shutil.rmtree(gone)
            del self._asked[name]
            total -= size


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*"))
