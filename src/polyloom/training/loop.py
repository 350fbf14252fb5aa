"""Take the optimizer steps of a stage. The caller logs, validates, saves and stops.

A step is one batch, which several processes share and which may be cut into micro-batches. Its loss is

    Σ_t factor_t · (examples of task t / examples) · (sum of t's losses / t's predictions)

where all counts are those of the whole step, whatever the number of processes and micro-batches. Step n is a function
of the weights, the state of the optimizer and n alone, so a resumed run repeats it bit for bit.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polyloom.conditions import Condition
from polyloom.data.mixture import Pick
from polyloom.data.shuffle import random_uint64
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import TrainingError
from polyloom.model import Model
from polyloom.nn.tables import sparse_gradients
from polyloom.tasks.base import Example
from polyloom.tasks.batch import Batch, make_batch
from polyloom.training.changed_rows import ChangedRows
from polyloom.training.distributed import (
    ProcessGroup,
    average_gradients,
    check_same_weights,
    parallelize,
    trained_banks,
)
from polyloom.training.events import StepEvent, StepSkipped, StepTaken
from polyloom.training.optim import Optimizer
from polyloom.training.plan import StagePlan

MAX_SKIPPED = 5  # steps in a row whose loss or gradient is NaN or infinite

T = TypeVar("T")


class DivergedError(TrainingError):
    """Raised if the weights give no finite loss or gradient any more."""


class StopAndSaveFlags(NamedTuple):
    """What any process wants to happen after a step. All processes get the same flags, so that all act together."""

    save: bool = False
    """Whether a checkpoint is due by time."""
    interrupt: bool = False
    """Whether SIGINT was received."""
    terminate: bool = False
    """Whether SIGTERM was received."""


class StepBatches(NamedTuple):
    """The batches of a step."""

    micro_batches: list[Batch]
    """The micro-batches of this process."""
    datasets: Counter[str]
    """Number of examples of the whole step by dataset."""
    conditions: list[Condition]
    """The conditions of the whole step."""


class ReadAhead(Generic[T]):
    """Calls a function for the next numbers before they are needed.

    The next steps are known, because a batch is a function of the number of its step. A context: at its end, work that
    has not begun is dropped.

    Args:
        make: The function. It must be safe to call from another thread.
        ahead: How many numbers ahead it is called.
        stop: The end of the numbers, exclusive.
        threads: Number of threads; more than one hides the latency of object storage.
    """

    def __init__(self, make: Callable[[int], T], *, ahead: int, stop: int, threads: int = 1) -> None:
        self._make, self._ahead, self._stop = make, ahead, stop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")
        self._results: dict[int, Future[T]] = {}

    def __enter__(self) -> "ReadAhead[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def get(self, number: int) -> T:
        """Return the result for a number, or raise what the function raised for it."""
        for later in range(number, min(number + self._ahead + 1, self._stop)):
            if later not in self._results:
                self._results[later] = self._pool.submit(self._make, later)
        return self._results.pop(number).result()


class Objective(nn.Module):
    """Computes the training loss of a batch: a weighted sum over tasks.

    It is a module because DDP wraps what it is called with: all that trains must be used in its forward pass.
    """

    def __init__(self, model: Model, penalty_weight: float = 0.0) -> None:
        super().__init__()
        self.model, self.penalty_weight = model, penalty_weight
        inner = set(model.backbone.model.base_model.parameters())
        # By name, because sharding a model replaces its parameters.
        self._head_only = [name for name, p in model.backbone.named_parameters() if p not in inner]

    def forward(
        self, batch: Batch, weights: Mapping[str, Tensor], penalized: Sequence[Condition] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted loss of a batch, and the unweighted sum of losses by task.

        Args:
            batch: The batch.
            weights: Weight of each task's sum.
            penalized: Conditions of the method's penalty; none for no penalty.
        """
        sums = self.model.losses(batch)
        loss = torch.stack([total * weights[task].to(total.dtype) for task, total in sums.items()]).sum()
        if penalized:
            penalty = self.model.method.penalty(self.model.method.encode(penalized))
            loss = loss if penalty is None else loss + self.penalty_weight * penalty
        # Heads that this batch does not use need a gradient too: DDP waits for one of every parameter in every process.
        for parameter in self.unused_parameters(sums):
            loss = loss + 0.0 * parameter.sum()
        return loss, {task: total.detach() for task, total in sums.items()}

    def unused_parameters(self, tasks: Container[str]) -> list[nn.Parameter]:
        """Return the trainable parameters of heads that these tasks do not use."""
        unused = [p for task, head in self.model.tasks.items() if task not in tasks for p in head.parameters()]
        uses_backbone_head = any(task in tasks and head.uses_lm_head for task, head in self.model.tasks.items())
        unused += [] if uses_backbone_head else [self.model.backbone.get_parameter(name) for name in self._head_only]
        return [parameter for parameter in unused if parameter.requires_grad]


class TrainLoop:
    """Trains a model for one stage.

    Args:
        model: The model. Its stage is set here.
        plan: The stage with its settings and datasets.
        tokenizer: The tokenizer.
        process_group: The processes of the run.
        local_flags: Function that returns the flags of this process. It is called once per step, and its result is
            summed over the processes together with the losses.
        changed_rows: Where the optimizer notes the rows of banks that it updates.

    Attributes:
        objective: The training loss, distributed over the processes.
        optimizer: The optimizer of the stage.
        mixture: The mixture, which decides the examples of every step.
        datasets: The datasets by name.
        max_length: Maximum number of tokens of an example.
        flags: What any process wants to happen after the last step.
    """

    def __init__(
        self,
        model: Model,
        plan: StagePlan,
        *,
        tokenizer: Tokenizer,
        process_group: ProcessGroup,
        local_flags: Callable[[], StopAndSaveFlags] = StopAndSaveFlags,
        changed_rows: ChangedRows | None = None,
    ) -> None:
        self.model, self.plan, self.tokenizer, self.process_group = model, plan, tokenizer, process_group
        model.set_stage(plan.stage)
        model.train()
        model.backbone.train(plan.train.dropout)
        for task in model.tasks.values():
            task.label_smoothing = plan.train.label_smoothing
        if plan.train.gradient_checkpointing:
            model.backbone.enable_gradient_checkpointing()
        if process_group.size > 1:
            check_same_weights(model)

        # Sharding replaces parameters, so the optimizer and all that holds parameters come after `parallelize`.
        num_examples = sum(len(dataset.dataset) for dataset in plan.datasets)
        self._objective = Objective(model, penalty_weight=1.0 / max(num_examples, 1))
        self.objective = parallelize(self._objective, model, process_group=process_group, strategy=plan.train.strategy)
        self.optimizer = Optimizer(model, plan.optim, changed_rows)
        self._banks = trained_banks(model)

        self.mixture = plan.make_mixture()
        self.datasets = {dataset.name: dataset for dataset in plan.datasets}
        self.max_length = plan.train.max_length or model.backbone.max_length
        self._packed_length = self.max_length - tokenizer.num_special(pair=False) if plan.train.pack_sequences else 0
        self.flags, self._local_flags = StopAndSaveFlags(), local_flags
        self._earlier_steps, self._last_taken = 0, -1

    def steps(self, done: int = 0, *, earlier_steps: int = 0) -> Iterator[StepEvent]:
        """Take the steps after the first `done` ones, and yield each. Step n is the same in every run, resumed or not.

        Args:
            done: Number of steps of this stage that were taken before.
            earlier_steps: Number of steps of earlier stages.

        Raises:
            DivergedError: Too many steps in a row were skipped.
        """
        self._earlier_steps, self._last_taken = earlier_steps, done - 1
        skipped = 0
        ahead = self.plan.train.read_ahead  # each in a thread of its own, since object storage has latency
        with ReadAhead(self.batches, ahead=ahead, stop=self.plan.steps, threads=max(1, ahead)) as batches:
            for index in range(done, self.plan.steps):
                event = self.take(index, batches.get(index))
                skipped = skipped + 1 if event.skipped else 0
                self._last_taken = self._last_taken if event.skipped else index
                if skipped == MAX_SKIPPED:
                    loss, norm = ("not finite" if x is None else x for x in (event.loss, event.gradient_norm))
                    raise DivergedError(
                        f"step {event.step}: loss or gradient was NaN or infinite {skipped} times in a row "
                        f"(last: loss {loss}, gradient norm {norm}). The weights are unchanged since. Lower optim.lr, "
                        "raise optim.warmup_steps, or check the datasets of these steps in log.jsonl."
                    )
                yield event

    def is_healthy(self) -> bool:
        """Return whether loss and gradient of the last step that was taken are still finite after its update.

        An update can leave finite weights that give no finite loss. What is saved must not be such weights.
        """
        return self._last_taken >= 0 and not self.take(self._last_taken, update=False).skipped

    def take(self, index: int, batches: StepBatches | None = None, *, update: bool = True) -> StepEvent:
        """Take a step, counted from 0 within the stage.

        Args:
            index: Number of the step.
            batches: Its batches, if they are known already.
            update: Whether to update the weights. If not, only loss and gradient are computed.
        """
        started = time.perf_counter()
        micro_batches, datasets, conditions = batches or self.batches(index)
        tasks, device = list(self.model.tasks), torch.device(self.process_group.device)

        # Count what sums of losses are divided by: the predictions of each task, in all processes. They are known
        # before the forward pass, so each micro-batch is weighted and its graph freed by its own backward pass.
        predictions = dict.fromkeys(tasks, 0)
        num_tokens = 0
        for batch in micro_batches:
            if not batch.is_placeholder:
                num_tokens += batch.num_tokens
                for task, rows in batch.by_task.items():
                    predictions[task] += rows.count
        totals = self.process_group.all_reduce(self._on_device([*predictions.values(), num_tokens]))
        loaded = time.perf_counter()

        # Weigh each task by its share of the examples. DDP and FSDP average gradients over the processes where their
        # sum is needed, hence the number of processes.
        examples = dict.fromkeys(tasks, 0)
        for name, number in datasets.items():
            examples[self.datasets[name].condition.task] += number
        num_examples = sum(examples.values())
        factors = {task: self.plan.task_weights.get(task, 1.0) for task in tasks}
        trained = {task for task in tasks if examples[task] and factors[task]}
        shares = [self.process_group.size * number / num_examples for number in examples.values()]
        task_shares, task_factors = self._on_device([shares, list(factors.values())])
        weights = dict(zip(tasks, task_shares / totals[:-1].clamp(min=1) * task_factors, strict=True))

        # Forward and backward. Each process draws its own dropout, the same one when the step is repeated.
        torch.manual_seed(int(random_uint64((self.plan.train.seed, index, self.process_group.rank), 1)[0]) >> 1)
        bf16 = self.plan.train.precision == "bf16"
        sums = torch.zeros(len(tasks) + len(self.flags), dtype=torch.float64, device=device)
        for number, batch in enumerate(micro_batches, 1):
            last = number == len(micro_batches)
            batch_weights = {task: weights[task] * (not batch.is_placeholder) for task in batch.by_task}
            # The method's penalty belongs to the whole step: every process adds the same, once.
            penalized = [condition for condition in conditions if last and condition.task in trained]
            with ExitStack() as stack:
                stack.enter_context(sparse_gradients(self._banks))
                if isinstance(self.objective, DistributedDataParallel) and not last:
                    stack.enter_context(self.objective.no_sync())  # DDP averages once, in the last backward pass
                with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
                    batch_loss, batch_sums = self.objective(batch.to(device), batch_weights, penalized)
                batch_loss.backward()
            for position, task in enumerate(tasks):
                if task in batch_sums and not batch.is_placeholder:
                    sums[position] += batch_sums[task].double()

        # Average what DDP and FSDP leave to us, and forget the zeros of heads without examples: with a gradient, even
        # of zero, old momentum and weight decay would move them.
        average_gradients(self.optimizer.parameters, self._banks, self.process_group, self.plan.train.strategy)
        for parameter in self._objective.unused_parameters(trained):
            parameter.grad = None
        norm_on_device = self.optimizer.clip_gradient()

        # The flags travel with the losses, which saves a message. They are copied only if there are any.
        if any(local_flags := self._local_flags()):
            sums[len(tasks) :] = self._on_device(local_flags)
        sums = self.process_group.all_reduce(sums)

        # Read all results at once. The host waits for the device here and nowhere else, since each wait leaves a GPU
        # idle; and it waits before the update, because whether there is one depends on the results.
        numbers = torch.cat([sums, totals, norm_on_device.double().view(1)]).tolist()
        task_sums, flags = numbers[: len(tasks)], numbers[len(tasks) : len(sums)]
        counts, (num_tokens, norm) = numbers[len(sums) : -2], numbers[-2:]
        if update:
            self.flags = StopAndSaveFlags(*map(bool, flags))
        losses = {
            task: task_sum / max(count, 1)
            for task, task_sum, count in zip(tasks, task_sums, counts, strict=True)
            if examples[task]
        }
        loss = sum(losses[task] * examples[task] / num_examples * factors[task] for task in losses)
        computed = time.perf_counter()

        # Update, unless a number is NaN or infinite: it would spoil the weights and the moments of Adam for good.
        finite = math.isfinite(loss) and math.isfinite(norm)
        lr_factor = self.plan.optim.factor(index, self.plan.steps)
        if update and finite and trained:
            self.optimizer.step(lr_factor)
        else:
            self.optimizer.zero_grad()
        updated = time.perf_counter()

        event_type = StepTaken if finite else StepSkipped
        return event_type(
            step=index + 1,
            total=self._earlier_steps + index + 1,
            loss=loss if math.isfinite(loss) else None,
            losses={task: value for task, value in losses.items() if math.isfinite(value)},
            datasets=dict(datasets),
            tokens=int(num_tokens),
            gradient_norm=norm if math.isfinite(norm) else None,
            lr_factor=lr_factor,
            seconds={
                "data": round(loaded - started, 6),
                "compute": round(computed - loaded, 6),
                "update": round(updated - computed, 6),
            },
        )

    def _on_device(self, values: Sequence[Any]) -> Tensor:
        """Return a tensor of numbers on the device of this process, without waiting for the device."""
        return torch.tensor(values, dtype=torch.float64).to(self.process_group.device, non_blocking=True)

    def batches(self, index: int) -> StepBatches:
        """Make the batches of a step for this process. Safe to call from several threads."""
        picks = self.mixture.batch(index)
        conditions = list(dict.fromkeys(self.datasets[pick.dataset].condition for pick in picks))

        # Examples of similar length share a micro-batch, to save padding. The sum over the step stays the same.
        num_micro_batches = min(self.plan.train.grad_accum_steps, math.ceil(len(picks) / self.process_group.size))
        ordered = picks
        if num_micro_batches > 1:
            lengths = [self.max_length] * len(picks)  # of packed examples
            for name, positions in _by_dataset(picks).items():
                dataset = self.datasets[name]
                if not (self._packed_length and self.model.tasks[dataset.condition.task].raw_text):
                    rows = dataset.dataset.rows([picks[i].index for i in positions])
                    for position, row in zip(positions, rows, strict=True):
                        lengths[position] = int(row["length"])
            ordered = [picks[i] for i in np.argsort(lengths, kind="stable")]

        # Processes take the examples of a micro-batch in turn: of sorted ones all get about as many tokens.
        micro_batches = []
        for number in range(num_micro_batches):
            first, last = (i * len(picks) // num_micro_batches for i in (number, number + 1))
            local = ordered[first:last][self.process_group.rank :: self.process_group.size]
            if local:
                micro_batches.append(self._batch(local))
            else:  # fewer examples than processes; without a batch, this one would miss the collectives of the others
                micro_batches.append(replace(self._batch(picks[:1]), is_placeholder=True))
        return StepBatches(micro_batches, Counter(pick.dataset for pick in picks), conditions)

    def _batch(self, picks: Sequence[Pick]) -> Batch:
        """Read examples, dataset by dataset, and lay them out in the order in which they were picked."""
        # Examples of a dataset are read together: most are in one block.
        examples: dict[int, Example] = {}
        for name, positions in _by_dataset(picks).items():
            dataset = self.datasets[name]
            task = self.model.tasks[dataset.condition.task]
            dataset_examples = dataset.examples(
                [picks[i].index for i in positions],
                [picks[i].key for i in positions],
                task,
                packed_length=self._packed_length,
                restrict_candidates=self.plan.train.mlm_candidates == "corpus",
            )
            for position, example in zip(positions, dataset_examples, strict=True):
                row = task.excerpt(example.row, example.key, max_length=self.max_length)
                examples[position] = example._replace(row=row)
        ordered = [examples[position] for position in range(len(picks))]
        batch = make_batch(ordered, tasks=self.model.tasks, tokenizer=self.tokenizer, max_length=self.max_length)
        return batch.pinned() if self.process_group.device.startswith("cuda") else batch


def _by_dataset(picks: Sequence[Pick]) -> dict[str, list[int]]:
    """Return the positions of the examples of each dataset."""
    positions: dict[str, list[int]] = {}
    for position, pick in enumerate(picks):
        positions.setdefault(pick.dataset, []).append(position)
    return positions
