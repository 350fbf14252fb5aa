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
    """The log of a run, without steps and validations that a resumed or restarted run repeated."""

    begin: RunStarted | None = None
    """The last start of the run."""
    stages: dict[str, StageStarted] = field(default_factory=dict)
    """The first start of every stage, by name."""
    mixtures: dict[str, Sequence[Share]] = field(default_factory=dict)
    """The mixture of every stage, by name of the stage."""
    steps: list[StepEvent] = field(default_factory=list)
    """All steps, in order, skipped ones included."""
    validations: list[Validated] = field(default_factory=list)
    """All validations, in order."""
    shares: dict[str, LanguageShares] = field(default_factory=dict)
    """How much the weights depend on the language, by name of the stage."""
    done: RunFinished | None = None
    """The end of the run; none if it is not finished."""

    @classmethod
    def read(cls, path: Path) -> "History":
        """Read a log; see `read_log`."""
        history, stage = cls(), ""
        for event in read_log(path):
            match event:
                case StepEvent():
                    if history.steps and event.total <= history.steps[-1].total:
                        history._forget_after(event.total - 1)  # the run began again, because it had no checkpoint
                    history.steps.append(event)
                case Validated():
                    history.validations.append(event)
                case Resumed(total=total):
                    history._forget_after(total)
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

    def _forget_after(self, total: int) -> None:
        """Remove what came after a step."""
        self.steps = [step for step in self.steps if step.total <= total]
        self.validations = [past for past in self.validations if past.total <= total]
