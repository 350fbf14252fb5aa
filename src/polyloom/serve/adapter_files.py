"""Adapters as files for another server, such as vLLM: each is generated when it is first requested."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyloom.checkpoint import trained_parameters
from polyloom.conditions import Condition
from polyloom.errors import ExportError, UnavailableError
from polyloom.export.adapter import Adapter
from polyloom.export.peft import write_peft
from polyloom.io.atomic import remove_partial
from polyloom.serve.models import ServedModel


@dataclass
class AdapterFiles:
    """A folder with the LoRAs of conditions in PEFT's format, bounded in size.

    The folder of an adapter is named by the hash of its weights, and appears whole or not at all. It is never removed:
    vLLM reads it again whenever it needs the adapter, and ends with an error if it is gone.
    """

    folder: Path
    """The folder, in memory (``/dev/shm``) or on a fast disk."""
    base_name: str | None = None
    """The other server's name of the model that the adapters are for. Default: the run's own name for it."""
    max_mb: int = 1024
    """Megabytes of all adapters; further ones are refused."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_partial(self.folder)
        self._bytes = _size(self.folder)

    def find(self, model: ServedModel, condition: Condition) -> dict[str, Any]:
        """Return the folder of an adapter, which is written if it does not exist; safe to call from several threads.

        Raises:
            ExportError: The adapter does not fit the format.
            UnavailableError: There is no room for a further one.
        """
        path = self.folder / model.weights_hash(condition)
        described = {
            "condition": str(condition), "path": str(path.resolve()), "weights": path.name, "model": model.name,
            "version": model.version,
        }  # fmt: skip
        with self._lock:  # of callers at the same time, one writes and the others find the folder
            if path.exists():
                return described
            if not model.task(condition).uses_lm_head:
                raise ExportError(f"{condition}: has a head of its own, which no file for a language model can hold.")
            with torch.inference_mode():
                weights = model.run.model.method.weights([condition])
            if self._bytes + weights.num_bytes() > self.max_mb << 20:
                raise UnavailableError(
                    f"{self.folder}: no room for a further adapter of {weights.num_bytes() >> 20} MB. Raise "
                    "--adapters-mb."
                )
            # The other server has the backbone as it was published: `write_peft` refuses an adapter of a run that
            # trained parts of it.
            parameters = trained_parameters(model.run.model).items()
            trained = {name: parameter for name, parameter in parameters if name.startswith("backbone.")}
            about = {"backbone": self.base_name or model.run.recipe.backbone.name or ""}
            adapter = Adapter(condition, weights, backbone=trained, about=about, needs_trained_backbone=bool(trained))
            self._bytes += _size(write_peft(adapter, model.run.model.backbone, path))
        return described


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
