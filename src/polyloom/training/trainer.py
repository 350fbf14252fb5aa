"""From a model and its stages to a run: log, validate, save, select, resume."""

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
from polyloom.errors import TrainingError
from polyloom.metrics.score import Score, selection_score
from polyloom.model import Model
from polyloom.rundir import RunDir
from polyloom.training.distributed import ProcessGroup, gathered, like, whole
from polyloom.training.loop import StagePlan, Step, TrainLoop
from polyloom.training.parameter_report import check_trainable, language_shares, parameter_report, weight_std

Validate = Callable[[Model, StagePlan], Mapping[Condition, Score]]
Event = Mapping[str, Any]


@dataclass
class State:
    """Where a run is.

    Attributes:
        stage: Number of the stage.
        step: Steps taken in it.
        total: Steps taken in all stages.
        best_step: Checkpoint with the best score of this stage, by `total`.
        best_score: That score; higher is better.
        seconds: Time spent so far.
        num_tokens: Tokens seen so far.
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
    """A run in progress.

    Args:
        model: What learns.
        plans: Its stages.
        tokenizer: The tokenizer.
        folder: Where the run lives; resumed if there is a checkpoint.
        validate: Scores that select a checkpoint.
        process_group: The processes.
        on_event: Called with every event, which the log keeps too.
        about: What every checkpoint says of itself beside the model.
    """

    model: Model
    plans: Sequence[StagePlan]
    tokenizer: Tokenizer
    folder: RunDir
    validate: Validate | None = None
    process_group: ProcessGroup = field(default_factory=ProcessGroup)
    on_event: Callable[[Event], None] = lambda _: None
    about: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> Path:
        """Train from where the run is to its end; returns the checkpoint to use."""
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
        self._event("done", steps=state.total, seconds=round(state.seconds, 3), tokens=state.num_tokens)
        return self.folder.best()

    def _stage(self, state: State, optimizer: Mapping[str, Any]) -> None:
        plan = self.plans[state.stage]
        self.model.set_stage(plan.stage)
        check_trainable(self.model, plan.stage)
        with gathered(self.model):
            spreads, before = weight_std(self.model, plan.datasets[0].condition), language_shares(self.model)
        self._event(
            "stage",
            stage=plan.stage.name,
            steps=plan.steps,
            done=state.step,
            parameter_report=[asdict(group) for group in parameter_report(self.model)],
            weight_std=spreads,
        )
        loop = TrainLoop(self.model, plan, tokenizer=self.tokenizer, process_group=self.process_group)
        self._event("mixture", datasets=loop.mixture.table(plan.steps))
        if optimizer:
            parameters = {name: p for p, name in loop.optimizer.names.items()}
            loop.optimizer.restore({key: _restored(key, t, parameters) for key, t in optimizer.items()})
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
        with gathered(self.model):
            self._event("languages", stage=plan.stage.name, before=before, after=language_shares(self.model))
        self.process_group.barrier()

    @staticmethod
    def _due(every: int | None, number: int, *, last: bool) -> bool:
        return last or bool(every and number % every == 0)

    def _select(self, state: State, plan: StagePlan) -> bool:
        """Validate, and remember the checkpoint that is about to be written if it is the best."""
        if self.validate is None:
            return True
        with gathered(self.model):
            scores = self.validate(self.model, plan)
        if scores:
            mean = self.process_group.broadcast(selection_score(list(scores.values())))
            best = math.isfinite(mean) and (state.best_score is None or mean > state.best_score)
            if best:
                state.best_score, state.best_step = mean, state.total
            shown = {str(condition): _number(round(score.value, 4)) for condition, score in scores.items()}
            self._event("validation", step=state.step, total=state.total, scores=shown, mean=_number(mean), best=best)
        return True

    def _log(self, step: Step, state: State) -> None:
        kind = "skipped" if step.skipped else "step"
        self._event(
            kind,
            step=step.number,
            total=state.total,
            loss=_number(step.loss),
            losses={task: round(loss, 6) for task, loss in step.losses.items() if math.isfinite(loss)},
            datasets=dict(step.datasets),
            tokens=step.num_tokens,
            gradient_norm=_number(step.gradient_norm),
            lr_factor=step.factor,
            seconds={name: round(value, 6) for name, value in step.seconds.items()},
        )

    def _event(self, kind: str, **fields: Any) -> None:
        if self.process_group.is_main:
            event = {"event": kind, "time": round(time.time(), 3), **fields}
            self.folder.note(event)
            self.on_event(event)

    def _save(self, state: State, optimizer: Mapping[str, Any]) -> None:
        """Write a checkpoint; all processes gather, the leader writes."""
        tensors = {name: whole(parameter) for name, parameter in trained_parameters(self.model).items()}
        training = {name: whole(tensor) for name, tensor in optimizer.items()}
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
                    f"Earlier ones are as they were; make room and start again to go on from there."
                ) from error
            self.folder.prune(
                self.plans[state.stage].train.keep_last,
                keep={state.best_step} if state.best_step is not None else set(),
            )
            self._event("saved", total=state.total, seconds=round(time.perf_counter() - started, 6))
        self.process_group.barrier()

    def _restore(self) -> tuple[State, Mapping[str, Any]]:
        found = self.folder.latest()
        if found is None:
            return State(), {}
        if found.manifest["backbone"] != self._identity:
            raise TrainingError(
                f"{found.path}: was trained on another backbone. Go on with exactly that one, or take another folder."
            )
        self._fill(found.path, found.weights)
        state = State(**found.state)
        if state.best_step is not None and not self.folder.checkpoint(state.best_step).exists():
            # It went when a later one was better, and that one cannot be read: select anew.
            state.best_step = state.best_score = None
        self._event("resumed", stage=state.stage, step=state.step, total=state.total, checkpoint=found.path.name)
        return state, found.optimizer

    def _use_best(self, state: State) -> None:
        if state.best_step not in (None, state.total):
            assert state.best_step is not None
            best = self.folder.checkpoint(state.best_step)
            self._fill(best, read_tensors(best))

    @torch.no_grad()
    def _fill(self, path: Path, stored: Mapping[str, torch.Tensor]) -> None:
        parameters = trained_parameters(self.model)
        load_tensors_into(parameters, {name: like(t, parameters.get(name, t)) for name, t in stored.items()}, path)


def _number(value: float) -> float | None:
    """What JSON can say of a number."""
    return value if math.isfinite(value) else None


def _restored(key: str, tensor: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A tensor of an optimizer's state, sharded as its parameter is."""
    owner = parameters[key.rpartition("/")[0]]
    return tensor if tensor.dim() == 0 else like(tensor, owner)
