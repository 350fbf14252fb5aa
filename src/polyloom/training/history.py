"""Summarize the log of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyloom.data.mixture import Share
from polyloom.training.events import (
    LanguageShares,
    MixtureReady,
    Resumed,
    RunFinished,
    RunStarted,
    StageStarted,
    StepEvent,
    Validated,
    read_log,
)


@dataclass
class History:
    """The log of a run, without steps and validations that a resumed or restarted run repeated.

    Attributes:
        begin: The last start of the run.
        stages: The first start of every stage, by name.
        mixtures: The mixture of every stage, by name of the stage.
        steps: All steps, in order, skipped ones included.
        validations: All validations, in order.
        shares: How much the weights depend on the language, by name of the stage.
        done: The end of the run; none if it is not finished.
    """

    begin: RunStarted | None = None
    stages: dict[str, StageStarted] = field(default_factory=dict)
    mixtures: dict[str, Sequence[Share]] = field(default_factory=dict)
    steps: list[StepEvent] = field(default_factory=list)
    validations: list[Validated] = field(default_factory=list)
    shares: dict[str, LanguageShares] = field(default_factory=dict)
    done: RunFinished | None = None

    @classmethod
    def read(cls, path: Path) -> "History":
        """Read a log; see `read_log`."""
        history, stage = cls(), ""
        for event in read_log(path):
            match event:
                case StepEvent():
                    history._add(event)
                case Validated():
                    history.validations.append(event)
                case Resumed(total=total):
                    history._forget(total)
                case StageStarted():
                    stage = event.stage
                    history.stages.setdefault(stage, event)
                case MixtureReady():
                    history.mixtures[stage] = event.datasets
                case LanguageShares():
                    history.shares[event.stage] = event
                case RunStarted():
                    history.begin = event
                case RunFinished():
                    history.done = event
        return history

    def _add(self, step: StepEvent) -> None:
        if self.steps and step.total <= self.steps[-1].total:  # the run began again, because it had no checkpoint
            self._forget(step.total - 1)
        self.steps.append(step)

    def _forget(self, total: int) -> None:
        """Remove what came after a step."""
        self.steps = [step for step in self.steps if step.total <= total]
        self.validations = [past for past in self.validations if past.total <= total]
