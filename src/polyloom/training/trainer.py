"""Train a model through its stages: log, validate, save, select and resume."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from polyloom.checkpoint import (
    backbone_identity,
    describe_model,
    load_tensors_into,
    read_tensors,
    trained_parameters,
    write_checkpoint,
)
from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import CheckpointError, TrainingError
from polyloom.metrics.score import Score, selection_score
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.training.distributed import ProcessGroup, full_tensor, shard_like, unsharded
from polyloom.training.events import (
    CheckpointSaved,
    CheckpointSkipped,
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
)
from polyloom.training.loop import StagePlan, Step, TrainLoop
from polyloom.training.parameter_report import check_trainable, language_shares, parameter_report, weight_std

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
    """

    stage: int = 0
    step: int = 0
    total: int = 0
    best_step: int | None = None
    best_score: float | None = None
    seconds: float = 0.0
    num_tokens: int = 0


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
    """

    model: Model
    plans: Sequence[StagePlan]
    tokenizer: Tokenizer
    folder: RunDir
    validate: Validate | None = None
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    on_event: OnEvent = lambda _: None
    about: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> Path:
        """Train to the end of the last stage and return the checkpoint to use."""
        self._identity = backbone_identity(self.model)
        if self.process_group.is_main:
            self.folder.prepare()
        self.process_group.barrier()
        state, optimizer = self._restore()
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
        loop = TrainLoop(self.model, plan, tokenizer=self.tokenizer, process_group=self.process_group)
        self._report(MixtureReady(datasets=loop.mixture.table(plan.steps)))
        if optimizer:
            parameters = {name: p for p, name in loop.optimizer.names.items()}
            loop.optimizer.restore({key: _shard_state(key, t, parameters) for key, t in optimizer.items()})
        clock = time.perf_counter()
        for step in loop.steps(state.step):
            state.step, state.total = step.number, state.total + 1
            state.num_tokens += step.num_tokens
            now = time.perf_counter()
            state.seconds, clock = state.seconds + now - clock, now
            self._log(step, state)
            last = step.number == plan.steps
            validated = self._due(plan.train.evaluate_every, step.number, last=last) and self._select(state, plan)
            if validated or self._due(plan.train.save_every, step.number, last=last):
                self._save(state, loop.optimizer.state())
        with unsharded(self.model):
            shares_after = language_shares(self.model)
        self._report(LanguageShares(stage=plan.stage.name, before=shares_before, after=shares_after))
        self.process_group.barrier()

    @staticmethod
    def _due(every: int | None, number: int, *, last: bool) -> bool:
        return last or bool(every and number % every == 0)

    def _select(self, state: State, plan: StagePlan) -> bool:
        """Validate; if the score is the best of the stage, record the checkpoint that is about to be written."""
        if self.validate is None:
            return True
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
        return True

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

    def _save(self, state: State, optimizer: Mapping[str, Any]) -> None:
        """Write a checkpoint. All processes gather their shards; rank 0 writes."""
        tensors = {name: full_tensor(parameter) for name, parameter in trained_parameters(self.model).items()}
        training = {name: full_tensor(tensor) for name, tensor in optimizer.items()}
        if self.process_group.is_main:
            started = time.perf_counter()
            path = self.folder.checkpoint(state.total)
            manifest = describe_model(self.model) | {"backbone": self._identity} | dict(self.about)
            try:
                self.folder.drop(state.total)
                write_checkpoint(path, tensors, manifest, training=(training, asdict(state)))
            except OSError as error:
                raise TrainingError(
                    f"{path}: the checkpoint of step {state.total} cannot be written ({error.strerror or error}). "
                    f"Earlier checkpoints are unchanged. Free some disk space and run the same command to resume."
                ) from error
            self.folder.prune(
                self.plans[state.stage].train.keep_last,
                keep={state.best_step} if state.best_step is not None else set(),
            )
            self._report(CheckpointSaved(total=state.total, seconds=round(time.perf_counter() - started, 6)))
        self.process_group.barrier()

    def _restore(self) -> tuple[State, Mapping[str, Any]]:
        checkpoint = self.folder.latest(on_skip=self._report_skipped)
        if checkpoint is None:
            return State(), {}
        if checkpoint.manifest["backbone"] != self._identity:
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
            read_tensors(path)
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
            self._load(best, read_tensors(best))

    @torch.no_grad()
    def _load(self, path: Path, stored: Mapping[str, torch.Tensor]) -> None:
        parameters = trained_parameters(self.model)
        sharded = {name: shard_like(tensor, parameters.get(name, tensor)) for name, tensor in stored.items()}
        load_tensors_into(parameters, sharded, path)


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold; none if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def _shard_state(key: str, tensor: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Shard a tensor of the optimizer's state as its parameter is."""
    parameter = parameters[key.rpartition("/")[0]]
    return tensor if tensor.dim() == 0 else shard_like(tensor, parameter)
