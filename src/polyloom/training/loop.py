"""Run the steps of a stage as a generator. The caller logs, validates, saves and stops."""

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from polyloom.conditions import Condition
from polyloom.data.encoded import EncodedDataset
from polyloom.data.mixture import Mixture, MixtureConfig, Pick, steps_of_epochs
from polyloom.data.shuffle import random_uint64
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import TrainingError
from polyloom.methods.base import Stage
from polyloom.model import Model
from polyloom.nn.tables import sparse_gradients
from polyloom.tasks.base import EncodedExample, Example
from polyloom.tasks.batch import Batch, make_batch
from polyloom.training.changed_rows import ChangedRows
from polyloom.training.config import OptimConfig, TrainConfig
from polyloom.training.distributed import (
    ProcessGroup,
    average_gradients,
    average_sparse_gradients,
    check_same_weights,
    full_tensor,
    parallelize,
    trained_banks,
)
from polyloom.training.optim import Optimizer
from polyloom.training.read_ahead import ReadAhead

MAX_SKIPPED = 5  # steps in a row whose loss or gradient is NaN or infinite


class DivergedError(TrainingError):
    """Raised if the weights give no finite loss or gradient any more."""


class Requests(NamedTuple):
    """What any process asks for during a step.

    Attributes:
        save: Whether a checkpoint is due by time.
        interrupt: Whether SIGINT was received.
        terminate: Whether SIGTERM was received.
    """

    save: bool = False
    interrupt: bool = False
    terminate: bool = False


class TextPacking(NamedTuple):
    """Settings for packing lines of raw text into examples.

    Attributes:
        length: Number of tokens that examples are filled up to with the following lines. Defaults to 0: an example is
            one line.
        restrict_candidates: Whether masked tokens are predicted only among the tokens of their dataset.
    """

    length: int = 0
    restrict_candidates: bool = False


_UNPACKED = TextPacking()


@dataclass(frozen=True)
class TrainDataset:
    """An encoded dataset that trains the weights of a condition.

    Attributes:
        name: The condition, such as ``pos/en``; with the language of the text if that is not the condition's, such as
            ``mlm/en/sw@sw``.
        condition: The condition whose weights it trains.
        dataset: The examples.
        numbers: The model's id of each label of the dataset; -1 for labels that the model does not have.
    """

    name: str
    condition: Condition
    dataset: EncodedDataset
    numbers: Any

    @cached_property
    def token_types(self) -> Any:
        """All token ids that occur in the raw text, sorted."""
        starts = range(0, len(self.dataset), 10_000)
        chunks = (self.dataset.rows(range(start, min(start + 10_000, len(self.dataset)))) for start in starts)
        return np.unique(np.concatenate([np.unique(np.concatenate([r["tokens"] for r in rows])) for rows in chunks]))

    def examples(
        self, indices: Sequence[int], keys: Sequence[int], model: Model, *, packing: TextPacking = _UNPACKED
    ) -> list[Example]:
        """Return examples for a batch.

        Args:
            indices: Their rows in the dataset.
            keys: Their random keys, see `Pick.key`.
            model: The model, whose tasks map the labels.
            packing: How examples of raw text are made; ignored for other tasks.
        """
        task = model.tasks[self.condition.task]
        packing = packing if task.raw_text else _UNPACKED
        packed = packing.length > 0
        rows = [self._packed(i, packing.length) for i in indices] if packed else self.dataset.rows(indices)
        if packing.restrict_candidates:
            rows = [{**row, "candidates": self.token_types} for row in rows]
        labelled = (task.relabel(row, self.numbers) for row in rows)
        return [Example(self.condition, row, key) for row, key in zip(labelled, keys, strict=True)]

    def _packed(self, index: int, length: int) -> EncodedExample:
        """Concatenate lines from an index on, up to a length; the first line of a block follows its last."""
        tokens, starts = self.dataset.filled(index, "tokens", length)
        if len(tokens) > length:  # the batch cuts a long line at a random place, as it does without packing
            return {"tokens": tokens, "length": len(tokens)}
        return {"tokens": tokens, "starts": starts, "length": length}


@dataclass(frozen=True)
class StagePlan:
    """A stage with all its settings and datasets.

    Attributes:
        stage: The stage of the method.
        optim: Settings of the optimizer.
        train: Settings of training.
        mixture: Settings of the mixture.
        datasets: The datasets that it trains on.
        groups: Pairs of datasets that alternate, for the mixture strategy ``ratio``.
        task_weights: Factors of the losses of tasks; 1 for the others.
    """

    stage: Stage
    optim: OptimConfig
    train: TrainConfig
    mixture: MixtureConfig
    datasets: tuple[TrainDataset, ...]
    groups: tuple[tuple[str, str], ...] = ()
    task_weights: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def steps(self) -> int:
        """Number of optimizer steps."""
        if self.train.epochs:
            datasets = [dataset.dataset for dataset in self.datasets]
            return steps_of_epochs(
                self.train.epochs, datasets, datasets_per_batch=self.mixture.datasets_per_batch, **self._batch_size
            )
        if not self.train.steps:
            raise TrainingError(
                "train.steps: missing. Set the number of optimizer steps, such as train.steps=1000, or train.epochs."
            )
        return self.train.steps

    @property
    def _batch_size(self) -> dict[str, int | None]:
        by_tokens = self.train.tokens_per_batch
        return {
            "rows_per_batch": self.train.rows_per_batch or (None if by_tokens else 32),
            "tokens_per_batch": by_tokens,
        }

    def make_mixture(self) -> Mixture:
        """Build the mixture, which decides the examples of every step."""
        if self.train.tokens_per_batch and self.train.pack_sequences:
            raise TrainingError(
                "train.pack_sequences: packed examples have one length. Set train.rows_per_batch, not tokens_per_batch."
            )
        return Mixture(
            {dataset.name: dataset.dataset for dataset in self.datasets},
            self.mixture,
            seed=self.train.seed,
            **self._batch_size,
            groups=self.groups or None,
            steps=self.steps,
        )


@dataclass(frozen=True)
class Step:
    """The result of one step.

    Attributes:
        number: Number of the step within the stage, from 1.
        loss: Mean loss in nats per prediction, tasks weighted by their share of the examples and their factors
            (`StagePlan.task_weights`); NaN or infinite if the step was skipped because of it.
        losses: Mean loss in nats per prediction (token, word or sentence) by task, without factors.
        datasets: Number of examples by dataset.
        num_tokens: Number of tokens without padding.
        gradient_norm: Norm of the gradient before clipping.
        factor: Factor of the peak learning rates.
        seconds: Time by use: ``data``, ``compute``, ``update``.
        requests: What any process asked for during the step; the same in all processes.
    """

    number: int
    loss: float
    losses: Mapping[str, float]
    datasets: Mapping[str, int]
    num_tokens: int
    gradient_norm: float
    factor: float
    seconds: Mapping[str, float]
    requests: Requests

    @property
    def skipped(self) -> bool:
        """Whether the weights are unchanged because loss or gradient are NaN or infinite."""
        return not (math.isfinite(self.loss) and math.isfinite(self.gradient_norm))


class Objective(nn.Module):
    """Computes the training loss of a batch: a weighted sum over tasks."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        inner = set(model.backbone.model.base_model.parameters())
        # By name, because sharding a model replaces its parameters.
        self._head_only = [name for name, p in model.backbone.named_parameters() if p not in inner]

    def forward(
        self, batch: Batch, weights: Mapping[str, Tensor], penalty: Any = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted loss of a batch, and the unweighted sum of losses by task.

        Args:
            batch: The batch.
            weights: Weight of each task's sum.
            penalty: Conditions and weight of the method's penalty; none for no penalty.
        """
        sums = self.model.losses(batch)
        loss = torch.stack([total * weights[task].to(total.dtype) for task, total in sums.items()]).sum()
        if penalty is not None:
            conditions, weight = penalty
            term = self.model.method.penalty(self.model.method.encode(conditions))
            loss = loss if term is None else loss + weight * term
        # Heads that this batch does not use need a gradient too, because other processes may use them.
        for parameter in self.unused_parameters(sums):
            loss = loss + 0.0 * parameter.sum()
        return loss, {task: total.detach() for task, total in sums.items()}

    def unused_parameters(self, tasks: Container[str]) -> list[nn.Parameter]:
        """Return the trainable parameters of heads that these tasks do not use."""
        unused = [p for task, head in self.model.tasks.items() if task not in tasks for p in head.parameters()]
        uses_backbone_head = any(task in tasks and head.uses_lm_head for task, head in self.model.tasks.items())
        unused += [] if uses_backbone_head else [self.model.backbone.get_parameter(name) for name in self._head_only]
        return [parameter for parameter in unused if parameter.requires_grad]


class MicroBatch(NamedTuple):
    """A micro-batch. If `counts` is false its loss has weight zero: the process only takes part in the collectives."""

    batch: Batch
    counts: bool


class StepBatches(NamedTuple):
    """The batches of a step.

    Attributes:
        micro_batches: The micro-batches of this process.
        datasets: Number of examples of the whole step by dataset.
        conditions: The conditions of the whole step.
    """

    micro_batches: list[MicroBatch]
    datasets: Counter[str]
    conditions: list[Condition]


class TrainLoop:
    """Trains a model for one stage.

    Args:
        model: The model. Its stage is set here.
        plan: The stage with its settings and datasets.
        tokenizer: The tokenizer.
        process_group: The processes of the run.
        requests: Function that returns what this process asks for. It is called once per step, and its result is
            summed over the processes together with the losses.
        changed_rows: Where the optimizer notes the rows of banks that it updates.

    Attributes:
        objective: The training loss, distributed over the processes.
        optimizer: The optimizer of the stage.
        mixture: The mixture, which decides the examples of every step.
        datasets: The datasets by name.
        max_length: Maximum number of tokens of an example.
    """

    def __init__(
        self,
        model: Model,
        plan: StagePlan,
        *,
        tokenizer: Tokenizer,
        process_group: ProcessGroup,
        requests: Callable[[], Requests] = Requests,
        changed_rows: ChangedRows | None = None,
    ) -> None:
        self.model, self.plan, self.tokenizer, self.process_group = model, plan, tokenizer, process_group
        self._requests = requests
        model.set_stage(plan.stage)
        model.train()
        model.backbone.train(plan.train.dropout)
        for task in model.tasks.values():
            task.label_smoothing = plan.train.label_smoothing
        if plan.train.gradient_checkpointing:
            model.backbone.enable_gradient_checkpointing()
        if process_group.size > 1:
            check_same_weights(model)
        self._objective = Objective(model)
        self.objective = parallelize(self._objective, model, process_group=process_group, strategy=plan.train.strategy)
        self.optimizer = Optimizer(model, plan.optim, changed_rows)
        self._banks = trained_banks(model)
        self.mixture = plan.make_mixture()
        self.datasets = {dataset.name: dataset for dataset in plan.datasets}
        self.max_length = plan.train.max_length or model.backbone.max_length
        text_length = self.max_length - tokenizer.num_special(pair=False) if plan.train.pack_sequences else 0
        self._packing = TextPacking(text_length, plan.train.mlm_candidates == "corpus")
        self._num_examples = sum(len(dataset.dataset) for dataset in plan.datasets)
        self._sharded = process_group.size > 1 and plan.train.strategy == "fsdp"

    def steps(self, done: int = 0) -> Iterator[Step]:
        """Yield the steps after the first `done` ones. Step n is the same in every run, resumed or not.

        Raises:
            DivergedError: Too many steps in a row were skipped, or the last ones were and the weights are the reason.
        """
        skipped, taken = 0, done - 1
        ahead = self.plan.train.read_ahead  # each in a thread of its own, since object storage has latency
        with ReadAhead(self.micro_batches, ahead=ahead, stop=self.plan.steps, threads=max(1, ahead)) as batches:
            for index in range(done, self.plan.steps):
                step = self._take(index, batches.get)
                skipped, taken = (skipped + 1, taken) if step.skipped else (0, index)
                last = step.number == self.plan.steps
                if skipped == MAX_SKIPPED or (skipped and last and not self._works(taken)):
                    raise DivergedError(
                        f"step {step.number}: loss or gradient was NaN or infinite {skipped} times in a row "
                        f"(last: loss {step.loss}, gradient norm {step.gradient_norm}). The weights are unchanged "
                        "since. Lower optim.lr, raise optim.warmup_steps, or check the datasets of these steps in "
                        "log.jsonl."
                    )
                yield step

    def _works(self, index: int) -> bool:
        """Return whether loss and gradient are finite for the batch of a step that was taken before."""
        return index >= 0 and not self._take(index, update=False).skipped

    def micro_batches(self, index: int) -> StepBatches:
        """Make the micro-batches of a step for this process. Safe to call from several threads."""
        picks = self.mixture.batch(index)
        conditions = list(dict.fromkeys(self.datasets[pick.dataset].condition for pick in picks))
        num_micro_batches = min(self.plan.train.grad_accum_steps, math.ceil(len(picks) / self.process_group.size))
        # Examples of similar length share a micro-batch, to save padding. The sum over the step stays the same.
        ordered = (
            [picks[i] for i in np.argsort(self._lengths(picks), kind="stable")] if num_micro_batches > 1 else picks
        )
        micro_batches = []
        for number in range(num_micro_batches):
            first, last = (i * len(picks) // num_micro_batches for i in (number, number + 1))
            local = ordered[first:last][self.process_group.rank :: self.process_group.size]
            # A process without examples computes the first one at weight zero, because all take part in collectives.
            micro_batches.append(MicroBatch(self._batch(local or picks[:1]), counts=bool(local)))
        return StepBatches(micro_batches, Counter(pick.dataset for pick in picks), conditions)

    def _lengths(self, picks: Sequence[Pick]) -> list[int]:
        """Return the lengths of the examples of a step."""
        lengths = [self.max_length] * len(picks)
        for name, positions in _by_dataset(picks).items():
            dataset = self.datasets[name]
            if not (self._packing.length and self.model.tasks[dataset.condition.task].raw_text):
                for position, row in zip(
                    positions, dataset.dataset.rows([picks[i].index for i in positions]), strict=True
                ):
                    lengths[position] = int(row["length"])
        return lengths

    def _batch(self, picks: Sequence[Pick]) -> Batch:
        examples: dict[int, Example] = {}
        for name, positions in _by_dataset(picks).items():
            indices, keys = [picks[i].index for i in positions], [picks[i].key for i in positions]
            loaded = self.datasets[name].examples(indices, keys, self.model, packing=self._packing)
            task = self.model.tasks[self.datasets[name].condition.task]
            parts = (one._replace(row=task.excerpt(one.row, one.key, max_length=self.max_length)) for one in loaded)
            examples |= zip(positions, parts, strict=True)
        ordered = [examples[position] for position in range(len(picks))]
        batch = make_batch(ordered, tasks=self.model.tasks, tokenizer=self.tokenizer, max_length=self.max_length)
        return batch.pinned() if self.process_group.device.startswith("cuda") else batch

    def _take(self, index: int, batches: Callable[[int], StepBatches] | None = None, *, update: bool = True) -> Step:
        started = time.perf_counter()
        micro_batches, datasets, conditions = (batches or self.micro_batches)(index)
        totals = self.process_group.all_reduce(self._on_device(self._counts(micro_batches)))
        loaded = time.perf_counter()
        torch.manual_seed(int(random_uint64((self.plan.train.seed, index, self.process_group.rank), 1)[0]) >> 1)
        examples = self._examples(datasets)
        num_examples = sum(examples.values())
        factors = {task: self.plan.task_weights.get(task, 1.0) for task in examples}
        learnt = {task for task, factor in factors.items() if factor and examples[task]}
        # DDP and FSDP average the gradients of the processes, but their sum is needed: hence the number of processes.
        shares = [self.process_group.size * number / num_examples for number in examples.values()]
        shares_T, factors_T = self._on_device([shares, list(factors.values())])
        weights_T = shares_T / totals[:-1].clamp(min=1) * factors_T
        weights = {task: weight for task, weight in zip(examples, weights_T, strict=True) if examples[task]}
        sums, requests = self._backward(micro_batches, weights, [c for c in conditions if c.task in learnt])
        for parameter in self._objective.unused_parameters(learnt):  # else old momentum would update it
            parameter.grad = None
        read = _read(sums, requests, totals, self._clip_gradient())  # the host waits for the device here, and only here
        task_sums, asked, (*counts, num_tokens), (norm,) = read
        losses = {
            task: total / max(count, 1)
            for task, total, count in zip(examples, task_sums, counts, strict=True)
            if examples[task]
        }
        loss = sum(losses[task] * examples[task] / num_examples * factors[task] for task in losses)
        computed = time.perf_counter()
        factor = self.plan.optim.factor(index, self.plan.steps)
        if update and learnt and math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step(factor)
        else:
            self.optimizer.zero_grad()
        updated = time.perf_counter()
        seconds = {"data": loaded - started, "compute": computed - loaded, "update": updated - computed}
        return Step(
            index + 1, loss, losses, datasets, int(num_tokens), norm, factor, seconds, Requests(*map(bool, asked))
        )

    def _examples(self, datasets: Mapping[str, int]) -> dict[str, int]:
        """Count the examples of a step by task, from those by dataset."""
        examples = dict.fromkeys(self.model.tasks, 0)
        for name, number in datasets.items():
            examples[self.datasets[name].condition.task] += number
        return examples

    def _counts(self, micro_batches: Sequence[MicroBatch]) -> list[int]:
        """Count the predictions of each task, and then the tokens, of this process."""
        counted = [micro_batch.batch for micro_batch in micro_batches if micro_batch.counts]
        predictions = dict.fromkeys(self.model.tasks, 0)
        for batch in counted:
            for task, rows in batch.by_task.items():
                predictions[task] += rows.data.count
        return [*predictions.values(), sum(batch.num_tokens for batch in counted)]

    def _on_device(self, values: Sequence[Any]) -> Tensor:
        """Return a tensor of numbers on the device of this process, without waiting for the device."""
        return torch.tensor(values, dtype=torch.float64).to(self.process_group.device, non_blocking=True)

    def _backward(
        self, micro_batches: Sequence[MicroBatch], weights: Mapping[str, Tensor], conditions: Sequence[Condition]
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradients of all micro-batches.

        Returns:
            The sum of losses of each task, and what any process asks for, over all processes.
        """
        order = {task: number for number, task in enumerate(self.model.tasks)}
        device = torch.device(self.process_group.device)
        sums = torch.zeros(len(order) + len(Requests()), dtype=torch.float64, device=device)
        autocast = self.plan.train.precision == "bf16"
        for number, (batch, counts) in enumerate(micro_batches):
            last = number == len(micro_batches) - 1
            # The penalty belongs to the whole step: every process adds the same, once.
            penalty = (conditions, 1.0 / self._num_examples) if last and conditions else None
            with ExitStack() as stack:
                stack.enter_context(sparse_gradients(self._banks))
                if not last and isinstance(self.objective, DistributedDataParallel):
                    stack.enter_context(self.objective.no_sync())
                with torch.autocast(device.type, torch.bfloat16) if autocast else nullcontext():
                    batch_weights = {task: weights[task] * counts for task in batch.by_task}
                    loss, batch_sums = self.objective(batch.to(device), batch_weights, penalty)
                loss.backward()
            for task, total in batch_sums.items():
                sums[order[task]] += total.double() * counts
        self._average_gradients()
        if any(requests := self._requests()):
            sums[len(order) :] = self._on_device(requests)
        totals = self.process_group.all_reduce(sums)
        return totals[: len(order)], totals[len(order) :]

    def _average_gradients(self) -> None:
        """Average the gradients over the processes that DDP and FSDP leave to us."""
        of_banks = dict.fromkeys(parameter for bank in self._banks for parameter in bank.parameters())
        for parameter in of_banks:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.coalesce()
        if self.process_group.size > 1 and of_banks:
            average_sparse_gradients(list(of_banks))
        if self._sharded:
            average_gradients(p for p in self.optimizer.parameters if p not in of_banks and not isinstance(p, DTensor))

    def _clip_gradient(self) -> Tensor:
        """Clip the gradient, and return its norm before."""
        limit = self.plan.optim.max_grad_norm or math.inf
        tensors = list(map(_densely, self.optimizer.parameters))
        kinds = [[t for t in tensors if isinstance(t, DTensor) == sharded] for sharded in (False, True)]
        gradients = [[t.grad for t in kind if t.grad is not None] for kind in kinds]
        norms = [full_tensor(nn.utils.get_total_norm(kind)) for kind in gradients if kind]
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm() if norms else self._on_device([0.0])
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, limit, norm)
        return norm


def _read(*tensors: Tensor) -> list[list[float]]:
    """Return the numbers of several tensors, for which the host waits once."""
    numbers = iter(torch.cat([tensor.double().flatten() for tensor in tensors]).tolist())
    return [list(islice(numbers, tensor.numel())) for tensor in tensors]


def _by_dataset(picks: Sequence[Pick]) -> dict[str, list[int]]:
    """Return the positions of the examples of each dataset."""
    positions: dict[str, list[int]] = {}
    for position, pick in enumerate(picks):
        positions.setdefault(pick.dataset, []).append(position)
    return positions


def _densely(parameter: nn.Parameter) -> Tensor:
    """Return a tensor with a dense gradient: the parameter, or one whose gradient are the values of a sparse one."""
    if parameter.grad is None or not parameter.grad.is_sparse:
        return parameter
    values = parameter.grad.values()
    tensor = values.detach()
    tensor.grad = values  # clipped in place
    return tensor
