"""Events of preparing data, training, adding languages and evaluation, and the log of a run that stores them.

Functions that report events take ``on_event: OnEvent``. Each event is a dataclass; in the log it is one JSON object per
line of ``log.jsonl``, with the name of the event under ``event``.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Lt
from pydantic import TypeAdapter, ValidationError

from polyloom.data.mixture import Share
from polyloom.errors import DataError
from polyloom.io.sealed import check_line
from polyloom.io.untrusted import read_limited

_EVENTS: dict[str, type["Event"]] = {}
MAX_LOG = 1 << 30  # bytes

# Bounded, because logs may come from strangers: dates, durations and axes of larger numbers overflow.
Whole = Annotated[int, Ge(0), Lt(2**63)]
Number = Annotated[float, Gt(-1e100), Lt(1e100)]
Seconds = Annotated[float, Ge(0), Lt(1e10)]


def _now() -> float:
    return round(time.time(), 3)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base class of all events."""

    event: ClassVar[str]
    """Name of the event in the log."""
    time: Seconds = field(default_factory=_now)
    """Seconds since 1970."""

    def __init_subclass__(cls, *, event: str | None = None) -> None:
        """Register a class under the name of its event; a class without a name is a base of others."""
        if event is not None:
            cls.event = event
            _EVENTS[event] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON can hold it."""
        return {"event": self.event, **asdict(self)}


def parse_event(line: str) -> Event:
    """Build an event from a line of a log.

    Raises:
        ValueError: The event is unknown, a field is missing, or a value has another type.
    """
    stored = json.loads(line)
    if stored["event"] not in _EVENTS:
        raise ValueError(f"unknown event {stored['event']!r}")
    kind = _EVENTS[stored["event"]]
    if "time" not in stored:  # only new events get the present time
        raise ValueError(f"event {kind.event!r} has no time")
    try:
        return _adapter(kind.event).validate_python(stored)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"]))
        what = f"has no {field_name}" if first["type"] == "missing" else f"{field_name}: {first['msg']}"
        raise ValueError(f"event {kind.event!r} {what}") from error


@cache
def _adapter(name: str) -> TypeAdapter[Event]:
    return TypeAdapter(_EVENTS[name])


OnEvent = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class DatasetStarted(Event, event="preparing"):
    """The preparation of a dataset starts."""

    dataset: str
    """Its condition, such as ``pos/en``."""


@dataclass(frozen=True, kw_only=True)
class DatasetPrepared(Event, event="dataset"):
    """A dataset is encoded, or was found in the cache."""

    dataset: str
    """Its condition, such as ``pos/en``."""
    examples: Whole
    """Number of examples."""
    dropped: Mapping[str, Whole]
    """Number of filtered pairs, by rule; only of bitext."""
    path: str
    """File of the encoded dataset."""


@dataclass(frozen=True, kw_only=True)
class IssueFound(Event, event="issue"):
    """An issue was found in the data of a run."""

    severity: str
    """``serious`` or ``check``, as in `Issue`."""
    what: str
    """A sentence."""
    refused: bool = False
    """Whether it is a certain mistake that the recipe does not allow, so that training does not start."""


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event, event="begin"):
    """A process starts to train, from the beginning or from a checkpoint."""

    versions: Mapping[str, str]
    """Versions of Polyloom and the main libraries."""
    corpora: Mapping[str, str]
    """SHA-256 of every training corpus, by name."""
    changed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Settings that differ from those that the run had before, as [before, now]."""


@dataclass(frozen=True, kw_only=True)
class Resumed(Event, event="resumed"):
    """Training resumes from a checkpoint. Later steps in the log are void."""

    stage: Whole
    """Index of the stage."""
    step: Whole
    """Steps of the stage that were taken."""
    total: Whole
    """Steps of all stages that were taken."""
    checkpoint: str
    """Name of the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSkipped(Event, event="checkpoint-skipped"):
    """A checkpoint cannot be read, so that training resumes from an older one."""

    checkpoint: str
    """Name of the checkpoint."""
    reason: str
    """Why it cannot be read."""


@dataclass(frozen=True)
class ParameterGroup:
    """A group of parameters and how much of it is trainable."""

    name: str
    """Name of the group, as in `Stage.trains`."""
    trained: Whole
    """Number of trainable parameters (elements of tensors)."""
    total: Whole
    """Number of all its parameters."""
    tensors: Whole
    """Number of trainable tensors."""


@dataclass(frozen=True, kw_only=True)
class StageStarted(Event, event="stage"):
    """A stage of training starts, or is resumed."""

    stage: str
    """Name of the stage."""
    steps: Whole
    """Number of its steps."""
    done: Whole
    """Steps that were taken before."""
    parameter_report: Sequence[ParameterGroup]
    """All groups of parameters."""
    weight_std: Mapping[str, Number]
    """Standard deviation of every tensor of the adapters' weights, of one condition."""


@dataclass(frozen=True, kw_only=True)
class MixtureReady(Event, event="mixture"):
    """The mixture of a stage is known."""

    datasets: Sequence[Share]
    """Size, share of the draws and epochs of every dataset."""


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """Base class of `StepTaken` and `StepSkipped`."""

    step: Whole
    """Number of the step within its stage, from 1."""
    total: Whole
    """Number of the step over all stages, from 1."""
    loss: Number | None
    """Mean loss in nats per prediction, tasks weighted by their share of the examples and their factors; none if NaN or
    infinite."""
    losses: Mapping[str, Number]
    """Mean loss in nats per prediction (token, word or sentence) by task, without those that are NaN or infinite."""
    datasets: Mapping[str, Whole]
    """Number of examples by dataset."""
    tokens: Whole
    """Number of tokens without padding."""
    gradient_norm: Number | None
    """Norm of the gradient before clipping; none if NaN or infinite."""
    lr_factor: Number
    """Factor of the peak learning rates."""
    seconds: Mapping[str, Number]
    """Time by use: ``data``, ``compute``, ``update``."""

    @property
    def skipped(self) -> bool:
        """Whether the weights are unchanged because loss or gradient are NaN or infinite."""
        return isinstance(self, StepSkipped)


@dataclass(frozen=True, kw_only=True)
class StepTaken(StepEvent, event="step"):
    """An optimizer step was taken."""


@dataclass(frozen=True, kw_only=True)
class StepSkipped(StepEvent, event="skipped"):
    """A step left all weights unchanged, because its loss or gradient was NaN or infinite."""


@dataclass(frozen=True, kw_only=True)
class Validated(Event, event="validation"):
    """The model was scored on the validation corpora."""

    step: Whole
    """Number of the step within its stage, from 1."""
    total: Whole
    """Number of the step over all stages, from 1."""
    scores: Mapping[str, Number | None]
    """Score by condition; none if NaN or infinite."""
    metrics: Mapping[str, str]
    """Name of each score's metric by condition, such as ``perplexity``."""
    selection_score: Number | None
    """Mean that selects the checkpoint, see `selection_score`; none if NaN or infinite."""
    best: bool
    """Whether it is the highest of the stage so far."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event, event="saved"):
    """A checkpoint was written."""

    total: Whole
    """Steps of all stages that were taken."""
    seconds: Seconds
    """Time that writing took."""


@dataclass(frozen=True, kw_only=True)
class Diverged(Event, event="diverged"):
    """Training ended because the weights gave no finite loss or gradient any more."""

    total: Whole
    """Number of the last step over all stages."""
    checkpoint: str | None
    """Name of the newest checkpoint, from which training resumes; none if there is none."""


@dataclass(frozen=True, kw_only=True)
class LanguageShares(Event, event="languages"):
    """The dependence of the weights on the language, before and after a stage."""

    stage: str
    """Name of the stage."""
    before: Mapping[str, Number]
    """Share of the weights that differs between languages, from 0 to 1, by task."""
    after: Mapping[str, Number]
    """The same after the stage."""


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event, event="done"):
    """All stages are finished."""

    steps: Whole
    """Steps of all stages."""
    seconds: Seconds
    """Time of all steps, those of earlier processes included."""
    tokens: Whole
    """Tokens of all steps, without padding."""


@dataclass(frozen=True, kw_only=True)
class CheckpointsAveraged(Event, event="averaged"):
    """The run was made by averaging checkpoints."""

    run: str
    """Name of the run that they belong to."""
    steps: Sequence[Whole]
    """Their steps."""


@dataclass(frozen=True, kw_only=True)
class RowAdded(Event, event="grown"):
    """The run was made by adding a language or a task to another run."""

    run: str
    """Path of the other run."""
    checkpoint: str
    """Name of its checkpoint."""
    trained_on: Sequence[str]
    """Conditions of the new language or task that were trained."""


@dataclass(frozen=True, kw_only=True)
class DonorScored(Event, event="donor"):
    """The weights of a known language were scored on held-out data of an added one."""

    donor: str
    """The known language."""
    score: Number
    """Its selection score."""
    done: Whole
    """Number of languages that were scored so far."""
    total: Whole
    """Number of languages that may be scored."""


@dataclass(frozen=True, kw_only=True)
class RowStep(Event, event="row-step"):
    """An optimizer step for an added language or task was taken."""

    step: Whole
    """Number of the step, from 1."""
    steps: Whole
    """Number of all steps."""
    loss: Number | None
    """Mean loss in nats per prediction; none if NaN or infinite."""
    score: Number | None
    """Selection score on held-out data; none if this step was not followed by a validation."""


@dataclass(frozen=True, kw_only=True)
class ScoringStarted(Event, event="scoring"):
    """The evaluation of a condition starts."""

    condition: str
    """The condition, such as ``pos/tr``."""


@dataclass(frozen=True, kw_only=True)
class Scored(Event, event="scored"):
    """A condition was evaluated."""

    condition: str
    """The condition, such as ``pos/tr``."""
    scores: Mapping[str, Number]
    """Scores by metric."""


@dataclass(frozen=True, kw_only=True)
class Translated(Event, event="translated"):
    """Some sentences of an evaluation were translated."""

    done: Whole
    """Number of sentences so far."""
    total: Whole
    """Number of all sentences."""


def diverged_at(log: Path) -> int:
    """Return the highest step at which the run of a log diverged; -1 if it never did."""
    if not log.exists() or f'"{Diverged.event}"'.encode() not in log.read_bytes():  # a log may have a million lines
        return -1
    return max((event.total for event in read_log(log) if isinstance(event, Diverged)), default=-1)


def read_log(path: Path) -> Iterator[Event]:
    """Read the events of a log; a missing file has none.

    An incomplete last line, which a process is still writing or was killed while writing, is skipped.

    Raises:
        DataError: A line is not an event.
    """
    try:
        text = read_limited(path, MAX_LOG).decode(errors="replace") if path.exists() else ""
    except OSError as error:
        raise DataError(path, None, str(error)) from error
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        try:
            check_line(line)
            event = parse_event(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number == len(lines):  # the text behind the last line break
                return
            raise DataError(path, number, f"not an event of a run ({error}).") from error
        yield event
