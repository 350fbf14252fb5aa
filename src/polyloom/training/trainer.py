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
from torch import Tensor
from torch.distributed.tensor import DTensor

from polyloom.backbones.identity import differences
from polyloom.checkpoint import (
    Parts,
    PreviousCheckpoint,
    backbone_identity,
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
from polyloom.tensor_files import join
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
    Validated,
)
from polyloom.training.loop import DivergedError, StopAndSaveFlags, TrainLoop
from polyloom.training.parameter_report import check_trainable, language_shares, parameter_report, weight_std
from polyloom.training.plan import StagePlan
from polyloom.training.stopping import StopSignals, stop_exception

Validate = Callable[[Model, StagePlan], Mapping[Condition, Score]]


@dataclass
class State:
    """The position of a run, which its checkpoints store."""

    stage: int = 0
    """Index of the stage."""
    step: int = 0
    """Steps taken in the stage."""
    total: int = 0
    """Steps taken in all stages."""
    best_step: int | None = None
    """Value of `total` at the best checkpoint of the stage; none before the first validation."""
    best_score: float | None = None
    """Selection score of that checkpoint; higher is better."""
    seconds: float = 0.0
    """Time of all steps so far."""
    num_tokens: int = 0
    """Tokens of all steps so far, without padding."""
    scheduled: list[int] = field(default_factory=list)
    """Values of `total` at the newest checkpoints that the recipe asks for by steps, not by time."""


@dataclass
class Trainer:
    """Trains a model through all stages, or resumes an unfinished run.

    Every process of a run has a trainer, and all take the same decisions after the same step, because saving and
    validation contain collectives. Only rank 0 writes files.

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
        self._saved_at = time.monotonic()
        self._changed_rows = ChangedRows()
        self._previous: PreviousCheckpoint | None = None
        if self.process_group.is_main:
            self.folder.prepare()
        self.process_group.barrier()  # no process reads a checkpoint that rank 0 may be about to remove as incomplete
        state, optimizer = self._resume()
        with self.stop or nullcontext():
            while state.stage < len(self.plans):
                self._train_stage(state, optimizer)
                # The next stage begins with the best weights of this one, and with an optimizer of its own.
                if state.best_step is not None and state.best_step != state.total:
                    best = self.folder.checkpoint(state.best_step)
                    self._load(best, read_parts(best))
                state.stage, state.step, state.best_step, state.best_score = state.stage + 1, 0, None, None
                optimizer = {}
        self._report(RunFinished(steps=state.total, seconds=round(state.seconds, 3), tokens=state.num_tokens))
        return self.folder.best()

    def _resume(self) -> tuple[State, Mapping[str, Tensor]]:
        """Load the newest readable checkpoint; return the position of the run and the state of the optimizer."""

        def report_skipped(path: Path, error: CheckpointError) -> None:
            self._report(CheckpointSkipped(checkpoint=path.name, reason=str(error)))

        checkpoint = self.folder.latest(on_skip=report_skipped)
        if checkpoint is None:
            return State(), {}
        if differences(checkpoint.manifest["backbone"], self._identity):
            raise TrainingError(
                f"{checkpoint.path}: was trained on another backbone. Use that backbone, or another directory."
            )
        self._load(checkpoint.path, checkpoint.weights)
        state = State(**checkpoint.state)
        if state.best_step is not None:
            # The best checkpoint may be damaged; or it was removed when a later one was better, which is damaged. Then
            # the next validation selects anew, instead of an error at the end of the stage.
            best = self.folder.checkpoint(state.best_step)
            try:
                read_parts(best)
            except CheckpointError as error:
                report_skipped(best, error)
                state.best_step = state.best_score = None
        self._report(Resumed(stage=state.stage, step=state.step, total=state.total, checkpoint=checkpoint.path.name))
        return state, checkpoint.optimizer

    def _train_stage(self, state: State, optimizer: Mapping[str, Tensor]) -> None:
        """Train one stage, from the position of the run to its end."""
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
            local_flags=lambda: self._local_flags(plan),
            changed_rows=self._changed_rows,
        )
        if self._previous:  # by an earlier stage: no file of its optimizer's state can be linked
            self._previous = self._previous._replace(same_optimizer=False)
        self._report(MixtureReady(datasets=loop.mixture.table(plan.steps)))
        if optimizer:
            loop.optimizer.restore(optimizer)

        try:
            self._train_steps(loop, state)
        except DivergedError as error:
            steps = self.folder.steps()
            newest = self.folder.checkpoint(steps[-1]).name if steps else None
            self._report(Diverged(total=state.total, checkpoint=newest))
            where = f"resumes from {newest}, which is healthy" if newest else "starts from the beginning"
            raise TrainingError(
                f"{error} The same command with other settings of optim {where} (with those in "
                f"stages.{plan.stage.name}.optim if the recipe has them)."
            ) from None

        with unsharded(self.model):
            shares_after = language_shares(self.model)
        self._report(LanguageShares(stage=plan.stage.name, before=shares_before, after=shares_after))
        self.process_group.barrier()  # rank 0 may still be writing; the others read its checkpoints next

    def _train_steps(self, loop: TrainLoop, state: State) -> None:
        """Take the steps of a stage; log each, and validate, save and stop where it is due.

        What is decided here depends on numbers that all processes share, see `distributed`.

        Raises:
            DivergedError: The weights give no finite loss or gradient any more.
        """
        train, clock = loop.plan.train, time.perf_counter()
        validation_due = save_due = False
        for event in loop.steps(state.step, earlier_steps=state.total - state.step):
            state.step, state.total = event.step, event.total
            state.num_tokens += event.tokens
            now = time.perf_counter()
            state.seconds, clock = state.seconds + now - clock, now
            self._report(event)

            # While steps are skipped, all that is due is put off: their weights may have diverged. Flags need not be
            # remembered, since each process repeats its own until they have had an effect.
            last = event.step == loop.plan.steps
            validation_due |= last or bool(train.evaluate_every and event.step % train.evaluate_every == 0)
            save_due |= validation_due or bool(train.save_every and event.step % train.save_every == 0)
            if (event.skipped and not last) or not (save_due or any(loop.flags)):
                continue

            # Every checkpoint on disk must be one that training can go on from.
            if not loop.is_healthy():
                raise DivergedError(
                    f"step {event.step}: with the weights of this step, loss or gradient are NaN or infinite. They are "
                    "not saved. Lower optim.lr or raise optim.warmup_steps."
                )
            if validation_due:
                self._validate(state, loop.plan)
            self._save(state, loop.optimizer.state(), scheduled=save_due)
            if loop.flags.terminate or loop.flags.interrupt:
                raise stop_exception(signal.SIGTERM if loop.flags.terminate else signal.SIGINT)
            validation_due = save_due = False

    def _local_flags(self, plan: StagePlan) -> StopAndSaveFlags:
        """Return the flags of this process. Only rank 0 looks at the clock, so that all save after the same step."""
        minutes, received = plan.train.save_minutes, self.stop and self.stop.received
        overdue = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return StopAndSaveFlags(
            save=overdue and self.process_group.is_main,
            interrupt=received == signal.SIGINT,
            terminate=received == signal.SIGTERM,
        )

    def _validate(self, state: State, plan: StagePlan) -> None:
        """Validate; if the score is the best of the stage, select the checkpoint that is about to be written."""
        if self.validate is None:
            return
        with unsharded(self.model):
            scores = self.validate(self.model, plan)
        if not scores:
            return
        # Processes may differ in the last bits of a mean, and must not differ in what they select.
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

    def _save(self, state: State, optimizer: Mapping[str, Tensor], *, scheduled: bool) -> None:
        """Write a checkpoint, then remove old ones. All processes gather their shards; rank 0 writes.

        Raises:
            DivergedError: A parameter is NaN or infinite.
        """
        # Rows of banks that no step updated since the last checkpoint are as they were then, and need no look.
        tensors = {name: full_tensor(parameter) for name, parameter in trained_parameters(self.model).items()}
        banks = self._changed_rows.banks(self.model)
        changed = {name: bank.changed for bank in banks for name in bank.parameters}
        broken = [name for name, tensor in tensors.items() if not tensor[changed.get(name, ...)].isfinite().all()]
        if broken:
            raise DivergedError(
                f"step {state.step}: {len(broken)} of {len(tensors)} trained tensors have values that are NaN or "
                f"infinite, such as {broken[0]}. They are not saved. Lower optim.lr or raise optim.warmup_steps."
            )
        optimizer = {name: full_tensor(tensor) for name, tensor in optimizer.items()}
        newest = self.plans[state.stage].train.keep_last
        if scheduled:
            state.scheduled = [*state.scheduled, state.total][-newest:]

        # Only rank 0 works from here on, and the others wait at the barrier: no collective may stand between.
        if self.process_group.is_main:
            started = time.perf_counter()
            path = self.folder.checkpoint(state.total)
            manifest = describe_model(self.model) | {"backbone": self._identity} | dict(self.about)
            try:
                self.folder.drop(state.total)
                write_checkpoint(
                    path, tensors, manifest, training=(optimizer, asdict(state)), banks=banks, previous=self._previous
                )
            except OSError as error:
                raise TrainingError(
                    f"{path}: the checkpoint of step {state.total} cannot be written ({error.strerror or error}). "
                    f"Earlier checkpoints are unchanged. Free some disk space and run the same command to resume."
                ) from error
            self._previous = PreviousCheckpoint(path)
            self._report(CheckpointSaved(total=state.total, seconds=round(time.perf_counter() - started, 6)))
            # Of checkpoints by time, at most the two newest of all are kept: they must not displace scheduled ones.
            best = set() if state.best_step is None else {state.best_step}
            self.folder.prune(min(newest, 2), keep=best | set(state.scheduled))
        self.process_group.barrier()
        self._changed_rows.reset(self.model)
        self._saved_at = time.monotonic()

    @torch.no_grad()
    def _load(self, path: Path, stored: Parts) -> None:
        """Copy the parameters of a checkpoint into the model. All processes read it; each keeps its shards."""
        parameters = trained_parameters(self.model)
        sharded = {name for name, parameter in parameters.items() if isinstance(parameter, DTensor)}
        whole = join({name: parts for name, parts in stored.items() if name in sharded})
        shards = {name: [shard_like(tensor, parameters[name])] for name, tensor in whole.items()}
        load_parts_into(parameters, {**stored, **shards}, path)

    def _report(self, event: Event) -> None:
        """Write an event to the log and pass it to `on_event`; only rank 0 does."""
        if self.process_group.is_main:
            self.folder.note(event.to_dict())
            self.on_event(event)


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; none if it is NaN or infinite."""
    return value if math.isfinite(value) else None
