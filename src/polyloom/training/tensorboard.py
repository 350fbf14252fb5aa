"""Write the curves of a run for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyloom.errors import TrainingError
from polyloom.training.events import Event, Resumed, StageStarted, StepTaken, Validated


class TensorBoardWriter:
    """Writes losses, speed and validation scores of a run. Steps that a resumed run repeats replace the former ones.

    Args:
        folder: Directory for TensorBoard's event files.
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

    def on_event(self, event: Event) -> None:
        """Write the numbers of an event."""
        if isinstance(event, Resumed | StageStarted) and self._writer is None:
            # TensorBoard hides all that was logged for this step or later ones: a resumed run takes them again.
            purge = event.total + 1 if isinstance(event, Resumed) else None
            self._writer = self._open(str(self._folder), purge_step=purge)
        elif isinstance(event, StepTaken):
            speed = event.tokens / sum(event.seconds.values())
            numbers = {"loss": event.loss, "gradient_norm": event.gradient_norm, "tokens_per_second": speed}
            by_task = {f"loss_of_task/{task}": loss for task, loss in event.losses.items()}
            self._write(numbers | by_task | {"learning_rate_factor": event.lr_factor}, event)
        elif isinstance(event, Validated):
            scores = {f"validation/{name}/{event.metrics[name]}": score for name, score in event.scores.items()}
            self._write(scores | {"selection_score": event.selection_score}, event)

    def _write(self, numbers: Mapping[str, float | None], event: StepTaken | Validated) -> None:
        for name, value in numbers.items():
            if value is not None:  # a score that is NaN or infinite leaves a gap
                self._writer.add_scalar(name, value, event.total, walltime=event.time)

    def close(self) -> None:
        """Flush and close the event files."""
        if self._writer is not None:
            self._writer.close()
