"""Curves of a run for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyloom.errors import TrainingError


class TensorBoardWriter:
    """Writes what a run tells to a folder. Steps that a resumed run takes again replace what they wrote before.

    Args:
        folder: Where event files go.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise TrainingError(
                "--tensorboard: the package tensorboard is not installed. pip install 'polyloom[track]'"
            ) from error
        self._folder = folder
        self._open: Any = SummaryWriter
        self._writer: Any = None

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Write the numbers of an event."""
        kind = event["event"]
        if kind in ("resumed", "stage") and self._writer is None:
            purge = event["total"] + 1 if kind == "resumed" else None
            self._writer = self._open(str(self._folder), purge_step=purge)
        elif kind == "step":
            speed = event["tokens"] / sum(event["seconds"].values())
            numbers = {"loss": event["loss"], "gradient_norm": event["gradient_norm"], "tokens_per_second": speed}
            by_task = {f"loss_of_task/{task}": loss for task, loss in event["losses"].items()}
            self._write(numbers | by_task | {"learning_rate_factor": event["lr_factor"]}, event)
        elif kind == "validation":
            scores = {f"validation/{condition}": score for condition, score in event["scores"].items()}
            self._write(scores | {"validation_mean": event["mean"]}, event)

    def _write(self, numbers: Mapping[str, float], event: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, event["total"], walltime=event["time"])

    def close(self) -> None:
        """Write what is still held back."""
        if self._writer is not None:
            self._writer.close()
