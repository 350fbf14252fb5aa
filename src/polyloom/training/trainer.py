"""Train a model through its stages: log, validate, save, select and resume."""

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from polyloom.backbones.identity import differences
from polyloom.checkpoint import (
    Parts,
    backbone_identity,
    describe_earlier,
    describe_model,
    load_parts_into,
    read_parts,
    trained_parameters,
    write_checkpoint,
)
from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import CheckpointError, TrainingError
from polyloom.metrics.score import Score, selection_score
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.tensor_files import Earlier, join
from polyloom.training.changed_rows import ChangedRows
from polyloom.training.distributed import ProcessGroup, full_tensor, shard_like, unsharded
from polyloom.training.events import (
    CheckpointSaved,
    CheckpointSkipped,
    Diverged,
    Event,
    LanguageShares,
    MixtureReady,
    OnEvent,
    Resumed,
    RunFinished,
    StageStarted,
    StepSkipped,
    StepTaken,
    Validated,
    diverged_at,
)
from polyloom.training.loop import MAX_SKIPPED, DivergedError, Requests, StagePlan, Step, TrainLoop
from polyloom.training.parameter_report import check_trainable, language_shares, parameter_report, weight_std
from polyloom.training.stopping import StopSignals, stop_exception

Validate = Callable[[Model, StagePlan], Mapping[Condition, Score]]


@dataclass
class State:
    """The position of a run, which its checkpoints store.

    Attributes:
        stage: Index of the stage.
        step: Steps taken in the stage.
        total: Steps taken in all stages.
        best_step: Value of `total` at the best checkpoint of the stage; none before the first validation.
        best_score: Selection score of that checkpoint; higher is better.
        seconds: Time of all steps so far.
        num_tokens: Tokens of all steps so far, without padding.
        scheduled: Values of `total` at the newest checkpoints that the recipe asks for by steps, not by time.
    """

    stage: int = 0
    step: int = 0
    total: int = 0
    best_step: int | None = None
    best_score: float | None = None
    seconds: float = 0.0
    num_tokens: int = 0
    scheduled: list[int] = field(default_factory=list)


@dataclass
class Health:
    """Which checkpoints may have diverged weights: those since steps began to be skipped.

    Attributes:
        resumed: Value of `State.total` where this process began.
        diverged: Highest step at which the run diverged before; -1 if it never did.
        updated: Value of `State.total` at the last step that was not skipped.
        suspect: Value of `updated` before the first of the skipped steps; infinite if none was skipped lately.
    """

    resumed: int
    diverged: int
    updated: int = field(init=False)
    suspect: float = math.inf
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        self.updated = self.resumed

    def add(self, step: Step, total: int) -> None:
        """Add a step. After some steps in a row that were not skipped, nothing is suspect any more."""
        if step.skipped:
            self.suspect, self._in_a_row = min(self.suspect, self.updated), 0
            return
        self.updated, self._in_a_row = total, self._in_a_row + 1
        if self._in_a_row == MAX_SKIPPED:
            self.suspect = math.inf

    def first_bad(self, total: int) -> float:
        """Return the first step whose checkpoint is not to be resumed from, after the run diverged at a step.

        If it did not get further than the last time, this is the step where it began. So every attempt begins earlier.
        """
        return self.resumed if total <= self.diverged else min(self.suspect, self.updated)


@dataclass
class Due:
    """What is due after a step. While steps are skipped it is put off, because their weights may have diverged.

    Attributes:
        validation: Whether to validate.
        scheduled: Whether the recipe asks for a checkpoint at this step.
        by_time: Whether a checkpoint is due by time.
        signal: The signal that stops the run; 0 for none.
    """

    validation: bool = False
    scheduled: bool = False
    by_time: bool = False
    signal: int = 0

    def add(self, step: Step, plan: StagePlan) -> None:
        """Add what is due after a step."""
        train, last = plan.train, step.number == plan.steps
        self.validation |= last or bool(train.evaluate_every and step.number % train.evaluate_every == 0)
        self.scheduled |= self.validation or bool(train.save_every and step.number % train.save_every == 0)
        self.by_time |= step.requests.save
        if step.requests.terminate or step.requests.interrupt:
            self.signal = signal.SIGTERM if step.requests.terminate else signal.SIGINT


@dataclass
class Trainer:
    """Trains a model through all stages, or resumes an unfinished run.

    Args:
        model: The model to train.
        plans: Its stages, in order.
        tokenizer: The tokenizer.
        folder: Directory of the run. If it has a checkpoint, the run is resumed from there.
        validate: Function that scores the model on validation data; without it the last checkpoint is used.
        process_group: The processes of the run.
        on_event: Called with every event that is written to the log.
        about: Further entries for the manifest of every checkpoint.
        stop: Signals that stop the run after the current step; by default a signal ends the process at once.
    """

    model: Model
    plans: Sequence[StagePlan]
    tokenizer: Tokenizer
    folder: RunDir
    validate: Validate | None = None
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    on_event: OnEvent = lambda _: None
    about: Mapping[str, Any] = field(default_factory=dict)
    stop: StopSignals | None = None

    def run(self) -> Path:
        """Train to the end of the last stage and return the checkpoint to use."""
        self._identity = backbone_identity(self.model)
        if self.process_group.is_main:
            self.folder.prepare()
        self.process_group.barrier()
        state, optimizer = self._restore()
        self._saved_at, self._prune_later = time.monotonic(), False
        self._changed_rows = ChangedRows()
        self._earlier: Earlier | None = None
        self._health = Health(state.total, diverged_at(self.folder.log))
        with self.stop or nullcontext():
            while state.stage < len(self.plans):
                self._stage(state, optimizer)
                optimizer = {}
                self._use_best(state)
                state.stage, state.step, state.best_step, state.best_score = state.stage + 1, 0, None, None
        self._report(RunFinished(steps=state.total, seconds=round(state.seconds, 3), tokens=state.num_tokens))
        return self.folder.best()

    def _stage(self, state: State, optimizer: Mapping[str, Any]) -> None:
        plan = self.plans[state.stage]
        self.model.set_stage(plan.stage)
        check_trainable(self.model, plan.stage)
        with unsharded(self.model):
            stds, shares_before = weight_std(self.model, plan.datasets[0].condition), language_shares(self.model)
        self._report(
            StageStarted(
                stage=plan.stage.name,
                steps=plan.steps,
                done=state.step,
                parameter_report=parameter_report(self.model),
                weight_std=stds,
            )
        )
        loop = TrainLoop(
            self.model,
            plan,
            tokenizer=self.tokenizer,
            process_group=self.process_group,
            requests=lambda: self._requests(plan),
            changed_rows=self._changed_rows,
        )
        if self._earlier:
            self._earlier = self._earlier._replace(state=())  # it is that of another optimizer
        self._report(MixtureReady(datasets=loop.mixture.table(plan.steps)))
        if optimizer:
            loop.optimizer.restore(optimizer)
        try:
            self._steps(loop, state)
        except DivergedError as error:
            raise TrainingError(f"{error} {self._diverged(state)}") from None
        with unsharded(self.model):
            shares_after = language_shares(self.model)
        self._report(LanguageShares(stage=plan.stage.name, before=shares_before, after=shares_after))
        self.process_group.barrier()

    def _steps(self, loop: TrainLoop, state: State) -> None:
        clock, due = time.perf_counter(), Due()
        for step in loop.steps(state.step):
            state.step, state.total = step.number, state.total + 1
            state.num_tokens += step.num_tokens
            now = time.perf_counter()
            state.seconds, clock = state.seconds + now - clock, now
            self._log(step, state)
            self._health.add(step, state.total)
            due.add(step, loop.plan)
            if step.skipped and step.number < loop.plan.steps:
                continue
            self._prune(state)  # now, because this step shows that the newest checkpoint's weights give finite numbers
            if due.validation:
                self._select(state, loop.plan)
            if due.scheduled or due.by_time or due.signal:
                self._save(state, loop.optimizer.state(), scheduled=due.scheduled)
            if due.signal:
                raise stop_exception(due.signal)
            due = Due()
        self._prune(state)

    def _requests(self, plan: StagePlan) -> Requests:
        """Return what this process asks for. Only rank 0 looks at the clock, so that all save after the same step."""
        minutes, received = plan.train.save_minutes, self.stop and self.stop.received
        overdue = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return Requests(
            save=overdue and self.process_group.is_main,
            interrupt=received == signal.SIGINT,
            terminate=received == signal.SIGTERM,
        )

    def _select(self, state: State, plan: StagePlan) -> None:
        """Validate; if the score is the best of the stage, record the checkpoint that is about to be written."""
        if self.validate is None:
            return
        with unsharded(self.model):
            scores = self.validate(self.model, plan)
        if scores:
            mean = self.process_group.broadcast(selection_score(list(scores.values())))
            best = math.isfinite(mean) and (state.best_score is None or mean > state.best_score)
            if best:
                state.best_score, state.best_step = mean, state.total
            self._report(
                Validated(
                    step=state.step,
                    total=state.total,
                    scores={str(condition): _finite(round(score.value, 4)) for condition, score in scores.items()},
                    metrics={str(condition): score.metric.name for condition, score in scores.items()},
                    selection_score=_finite(mean),
                    best=best,
                )
            )

    def _log(self, step: Step, state: State) -> None:
        event_type = StepSkipped if step.skipped else StepTaken
        self._report(
            event_type(
                step=step.number,
                total=state.total,
                loss=_finite(step.loss),
                losses={task: round(loss, 6) for task, loss in step.losses.items() if math.isfinite(loss)},
                datasets=dict(step.datasets),
                tokens=step.num_tokens,
                gradient_norm=_finite(step.gradient_norm),
                lr_factor=step.factor,
                seconds={name: round(value, 6) for name, value in step.seconds.items()},
            )
        )

    def _report(self, event: Event) -> None:
        """Write an event to the log and pass it to `on_event`; only rank 0 does."""
        if self.process_group.is_main:
            self.folder.note(event.to_dict())
            self.on_event(event)

    def _save(self, state: State, optimizer: Mapping[str, Any], *, scheduled: bool) -> None:
        """Write a checkpoint. All processes gather their shards; rank 0 writes.

        Raises:
            DivergedError: A parameter is NaN or infinite.
        """
        tensors = {name: full_tensor(parameter) for name, parameter in trained_parameters(self.model).items()}
        banks = self._changed_rows.banks(self.model)
        changed = {name: bank.changed for bank in banks for name in bank.parameters}
        broken = [name for name, tensor in tensors.items() if not tensor[changed.get(name, ...)].isfinite().all()]
        if broken:
            raise DivergedError(
                f"step {state.step}: {len(broken)} of {len(tensors)} trained tensors have values that are NaN or "
                f"infinite, such as {broken[0]}. They are not saved. Lower optim.lr or raise optim.warmup_steps."
            )
        training = {name: full_tensor(tensor) for name, tensor in optimizer.items()}
        if scheduled:
            state.scheduled = [*state.scheduled, state.total]
        if self.process_group.is_main:
            started = time.perf_counter()
            path = self.folder.checkpoint(state.total)
            manifest = describe_model(self.model) | {"backbone": self._identity} | dict(self.about)
            try:
                self.folder.drop(state.total)
                write_checkpoint(
                    path, tensors, manifest, training=(training, asdict(state)), banks=banks, earlier=self._earlier
                )
                self._earlier = describe_earlier(path)
            except OSError as error:
                raise TrainingError(
                    f"{path}: the checkpoint of step {state.total} cannot be written ({error.strerror or error}). "
                    f"Earlier checkpoints are unchanged. Free some disk space and run the same command to resume."
                ) from error
            self._report(CheckpointSaved(total=state.total, seconds=round(time.perf_counter() - started, 6)))
        self.process_group.barrier()
        self._changed_rows.reset(self.model)
        self._saved_at, self._prune_later = time.monotonic(), True

    def _prune(self, state: State) -> None:
        """Remove old checkpoints, once after each save. Of those by time, at most the two newest of all are kept."""
        if not self._prune_later:
            return
        newest = self.plans[state.stage].train.keep_last
        state.scheduled = state.scheduled[-newest:]
        if self.process_group.is_main:
            best = set() if state.best_step is None else {state.best_step}
            healthy = [step for step in self.folder.steps() if step < self._health.suspect]
            self.folder.prune(min(newest, 2), keep=best | set(state.scheduled) | set(healthy[-1:]))
        self._prune_later = False

    def _diverged(self, state: State) -> str:
        """Set aside the checkpoints with diverged weights; say where the run resumes."""
        aside = self.folder.set_aside(self._health.first_bad(state.total)) if self.process_group.is_main else []
        self.process_group.barrier()
        steps = self.folder.steps()
        newest = self.folder.checkpoint(steps[-1]).name if steps else None
        self._report(Diverged(total=state.total, checkpoint=newest, set_aside=aside))
        moved = f"Checkpoints with diverged weights were renamed: {', '.join(aside)}. " if aside else ""
        where = f"resumes from {newest}" if newest else "starts from the beginning"
        return (
            f"{moved}The same command with other settings of optim {where} (with those in "
            f"stages.{self.plans[state.stage].stage.name}.optim if the recipe has them)."
        )

    def _restore(self) -> tuple[State, Mapping[str, Any]]:
        checkpoint = self.folder.latest(on_skip=self._report_skipped)
        if checkpoint is None:
            return State(), {}
        if differences(checkpoint.manifest["backbone"], self._identity):
            raise TrainingError(
                f"{checkpoint.path}: was trained on another backbone. Use that backbone, or another directory."
            )
        self._load(checkpoint.path, checkpoint.weights)
        state = State(**checkpoint.state)
        if state.best_step is not None and not self._readable(state.best_step):
            # It is damaged; or it was removed when a later one was better, which cannot be read: select again.
            state.best_step = state.best_score = None
        self._report(Resumed(stage=state.stage, step=state.step, total=state.total, checkpoint=checkpoint.path.name))
        return state, checkpoint.optimizer

    def _readable(self, step: int) -> bool:
        """Return whether the best checkpoint can be read at the end of the stage."""
        path = self.folder.checkpoint(step)
        try:
            read_parts(path)
        except CheckpointError as error:
            self._report_skipped(path, error)
            return False
        return True

    def _report_skipped(self, path: Path, error: CheckpointError) -> None:
        self._report(CheckpointSkipped(checkpoint=path.name, reason=str(error)))

    def _use_best(self, state: State) -> None:
        if state.best_step not in (None, state.total):
            assert state.best_step is not None
            best = self.folder.checkpoint(state.best_step)
            self._load(best, read_parts(best))

    @torch.no_grad()
    def _load(self, path: Path, stored: Parts) -> None:
        parameters = trained_parameters(self.model)
        sharded = {name for name, parameter in parameters.items() if isinstance(parameter, DTensor)}
        whole = join({name: parts for name, parts in stored.items() if name in sharded})
        shards = {name: [shard_like(tensor, parameters[name])] for name, tensor in whole.items()}
        load_parts_into(parameters, {**stored, **shards}, path)


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; none if it is NaN or infinite."""
    return value if math.isfinite(value) else None
