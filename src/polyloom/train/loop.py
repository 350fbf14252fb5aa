"""The training loop: a generator of steps. The caller logs, evaluates, saves and stops."""

import math
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from polyloom.conditions import Condition
from polyloom.data.encoded import EncodedDataset
from polyloom.data.mixture import Mixture, MixtureConfig, Pick
from polyloom.data.shuffle import random_uint64
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import TrainingError
from polyloom.methods.base import Stage
from polyloom.model import Model
from polyloom.tasks.base import EncodedExample, Example
from polyloom.tasks.batch import Batch, make_batch
from polyloom.train.config import OptimConfig, TrainConfig
from polyloom.train.distributed import ProcessGroup, parallelize
from polyloom.train.optim import Optimizer

MAX_SKIPPED = 5  # steps in a row with a loss or gradient that is no number


class TextPacking(NamedTuple):
    """How raw text is learnt.

    Attributes:
        fill: Pieces that rows are filled up to with the lines that follow; 0 for one line a row.
        choice: Whether masked pieces are chosen among those of their cell only.
    """

    fill: int = 0
    choice: bool = False


PLAIN = TextPacking()


@dataclass(frozen=True)
class TrainDataset:
    """Examples at rest that are learnt under one condition.

    Attributes:
        name: ``pos/en``; where the condition does not say the language of the text, ``mlm/en/sw@sw``.
        condition: Whose weights they train.
        dataset: The examples.
        numbers: The model's number of each of the cell's labels.
    """

    name: str
    condition: Condition
    dataset: EncodedDataset
    numbers: Any

    @cached_property
    def token_types(self) -> Any:
        """All pieces that occur in raw text, in order."""
        starts = range(0, len(self.dataset), 10_000)
        chunks = (self.dataset.rows(range(start, min(start + 10_000, len(self.dataset)))) for start in starts)
        return np.unique(np.concatenate([np.unique(np.concatenate([r["tokens"] for r in rows])) for rows in chunks]))

    def examples(
        self, indices: Sequence[int], keys: Sequence[int], model: Model, *, raw: TextPacking = PLAIN
    ) -> list[Example]:
        """Some of them, ready for a batch."""
        task = model.tasks[self.condition.task]
        raw = raw if task.raw_text else PLAIN
        rows = [self._running(index, raw.fill) for index in indices] if raw.fill else self.dataset.rows(indices)
        if raw.choice:
            rows = [{**row, "choice": self.token_types} for row in rows]
        return [
            Example(self.condition, task.relabel(row, self.numbers), key) for row, key in zip(rows, keys, strict=True)
        ]

    def _running(self, index: int, fill: int) -> EncodedExample:
        """The text that begins at a line; behind the last line comes the first."""
        lines: list[Any] = []
        while sum(map(len, lines)) < fill:
            following = np.arange(index + len(lines), index + len(lines) + 8) % len(self.dataset)
            lines += [row["tokens"] for row in self.dataset.rows(following)]
        if len(lines[0]) > fill:  # a long line is cut where chance decides, as it is without its followers
            return {"tokens": lines[0], "length": len(lines[0])}
        return {"tokens": np.concatenate(lines)[:fill], "length": fill}


@dataclass(frozen=True)
class StagePlan:
    """A stage with all its settings, and the cells it learns from."""

    stage: Stage
    optim: OptimConfig
    train: TrainConfig
    mixture: MixtureConfig
    datasets: tuple[TrainDataset, ...]
    groups: tuple[tuple[str, str], ...] = ()

    @property
    def steps(self) -> int:
        """How many steps it takes."""
        if not self.train.steps:
            raise TrainingError("train.steps: missing. How many optimizer steps shall be taken?")
        return self.train.steps

    def make_mixture(self) -> Mixture:
        """Which examples come when."""
        by_tokens = self.train.tokens_per_batch
        if by_tokens and self.train.pack_sequences:
            raise TrainingError(
                "train.pack_sequences: filled rows are of one length. Give train.rows_per_batch, not tokens."
            )
        return Mixture(
            {dataset.name: dataset.dataset.lengths for dataset in self.datasets},
            self.mixture,
            seed=self.train.seed,
            rows_per_batch=self.train.rows_per_batch or (None if by_tokens else 32),
            tokens_per_batch=by_tokens,
            groups=self.groups or None,
            steps=self.steps,
        )


@dataclass(frozen=True)
class Step:
    """What happened in one step.

    Attributes:
        number: Counted from 1 within the stage.
        loss: Mean loss, tasks weighted by their share of the examples; not a number if the step was skipped.
        losses: Mean loss by task.
        datasets: Examples by cell.
        num_tokens: Tokens, padding left out.
        gradient_norm: Before clipping.
        factor: Of the peak learning rates.
        seconds: Time by what it was spent on: ``data``, ``compute``, ``update``.
    """

    number: int
    loss: float
    losses: Mapping[str, float]
    datasets: Mapping[str, int]
    num_tokens: int
    gradient_norm: float
    factor: float
    seconds: Mapping[str, float]

    @property
    def skipped(self) -> bool:
        """Whether weights were left as they were, because loss or gradient were no number."""
        return not (math.isfinite(self.loss) and math.isfinite(self.gradient_norm))


class Objective(nn.Module):
    """What is differentiated: a batch's loss with a weight per task."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        inner = set(model.backbone.model.base_model.parameters())
        # By name: when a model is sharded, its parameters become others.
        self._head_only = [name for name, p in model.backbone.named_parameters() if p not in inner]

    def forward(
        self, batch: Batch, weights: Mapping[str, float], penalty: Any = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted loss, and its sum by task."""
        sums = self.model.losses(batch)
        loss = torch.stack([sums[task] * weights[task] for task in sums]).sum()
        if penalty is not None:
            conditions, weight = penalty
            term = self.model.method.penalty(self.model.method.encode(conditions))
            loss = loss if term is None else loss + weight * term
        # Heads that this batch does not use must have a gradient all the same: other processes may use them.
        for parameter in self.idle(sums):
            loss = loss + 0.0 * parameter.sum()
        return loss, {task: total.detach() for task, total in sums.items()}

    def idle(self, tasks: Container[str]) -> list[nn.Parameter]:
        """What learns, but not from these tasks: the heads of others."""
        absent = [p for task, head in self.model.tasks.items() if task not in tasks for p in head.parameters()]
        used = any(task in tasks and head.uses_lm_head for task, head in self.model.tasks.items())
        absent += [] if used else [self.model.backbone.get_parameter(name) for name in self._head_only]
        return [parameter for parameter in absent if parameter.requires_grad]


class MicroBatch(NamedTuple):
    """A piece of a step; one that does not count is gone through only to take part."""

    batch: Batch
    counts: bool


class TrainLoop:
    """One stage of training.

    Args:
        model: What learns. Its stage is set here.
        plan: The stage.
        tokenizer: The tokenizer.
        process_group: The processes.
    """

    def __init__(self, model: Model, plan: StagePlan, *, tokenizer: Tokenizer, process_group: ProcessGroup) -> None:
        self.model, self.plan, self.tokenizer, self.process_group = model, plan, tokenizer, process_group
        model.set_stage(plan.stage)
        model.train()
        model.backbone.train(plan.train.dropout)
        for task in model.tasks.values():
            task.label_smoothing = plan.train.label_smoothing
        if plan.train.gradient_checkpointing:
            model.backbone.enable_gradient_checkpointing()
        self._objective = Objective(model)
        self.objective = parallelize(self._objective, model, process_group=process_group, strategy=plan.train.strategy)
        self.optimizer = Optimizer(model, plan.stage, plan.optim)
        self.mixture = plan.make_mixture()
        self.datasets = {dataset.name: dataset for dataset in plan.datasets}
        self.max_length = plan.train.max_length or model.backbone.max_length
        room = self.max_length - tokenizer.num_special(pair=False)
        self._raw = TextPacking(room if plan.train.pack_sequences else 0, plan.train.mlm_candidates == "corpus")
        self._num_examples = sum(len(dataset.dataset) for dataset in plan.datasets)
        self._sharded = process_group.size > 1 and plan.train.strategy == "fsdp"

    def steps(self, done: int = 0) -> Iterator[Step]:
        """Take the steps that are left after `done`; the n-th is the same whenever it is taken."""
        skipped = 0
        for index in range(done, self.plan.steps):
            step = self._take(index)
            skipped = skipped + 1 if step.skipped else 0
            if skipped == MAX_SKIPPED:
                raise TrainingError(
                    f"step {step.number}: loss or gradient was not a number {MAX_SKIPPED} times in a row "
                    f"(last: loss {step.loss}, gradient norm {step.gradient_norm}). Weights are those before. "
                    "Lower optim.lr, lengthen optim.warmup_steps, or look at the cells of these steps in log.jsonl."
                )
            yield step

    def micro_batches(self, index: int) -> tuple[list[MicroBatch], Counter[str], list[Condition]]:
        """What this process does of a step, piece by piece; the step's examples by cell; its conditions."""
        picks = self.mixture.batch(index)
        conditions = list(dict.fromkeys(self.datasets[pick.dataset].condition for pick in picks))
        num_micro_batches = min(self.plan.train.grad_accum_steps, math.ceil(len(picks) / self.process_group.size))
        # Rows of similar length together: a piece is as wide as its longest row. What a step sums up stays the same.
        ordered = sorted(picks, key=self._length) if num_micro_batches > 1 else picks
        shares = []
        for number in range(num_micro_batches):
            first = number * len(picks) // num_micro_batches
            mine = ordered[first : (number + 1) * len(picks) // num_micro_batches][
                self.process_group.rank :: self.process_group.size
            ]
            # Without any row of its own, a process goes through the first one at weight zero: all must take part.
            shares.append(MicroBatch(self._batch(mine or picks[:1]), counts=bool(mine)))
        return shares, Counter(pick.dataset for pick in picks), conditions

    def _length(self, pick: Pick) -> int:
        dataset = self.datasets[pick.dataset]
        filled = self._raw.fill and self.model.tasks[dataset.condition.task].raw_text
        return self.max_length if filled else int(dataset.dataset.lengths[pick.index])

    def _batch(self, picks: Sequence[Pick]) -> Batch:
        by_cell: dict[str, list[int]] = {}
        for place, pick in enumerate(picks):
            by_cell.setdefault(pick.dataset, []).append(place)
        examples: dict[int, Example] = {}
        for name, places in by_cell.items():
            chosen = [picks[place] for place in places]
            indices, keys = [p.index for p in chosen], [p.key for p in chosen]
            found = self.datasets[name].examples(indices, keys, self.model, raw=self._raw)
            examples |= zip(places, found, strict=True)
        ordered = [examples[place] for place in range(len(picks))]
        return make_batch(ordered, tasks=self.model.tasks, tokenizer=self.tokenizer, max_length=self.max_length)

    def _take(self, index: int) -> Step:
        started = time.perf_counter()
        shares, datasets, conditions = self.micro_batches(index)
        counts, num_tokens = self._counts(shares)
        loaded = time.perf_counter()
        torch.manual_seed(int(random_uint64((self.plan.train.seed, index, self.process_group.rank), 1)[0]) >> 1)
        num_examples = sum(examples for _, examples in counts.values())
        # Gradients of processes are averaged, but theirs are parts of one sum: hence the team's size.
        weights = {
            t: self.process_group.size * examples / num_examples / max(n, 1) for t, (n, examples) in counts.items()
        }
        sums = self._differentiate(shares, weights, conditions)
        losses = {task: sums[task] / max(count, 1) for task, (count, _) in counts.items()}
        loss = sum(losses[task] * examples / num_examples for task, (_, examples) in counts.items())
        for parameter in self._objective.idle(counts):  # no gradient at all, else old momentum would move it
            parameter.grad = None
        norm = self._norm()
        computed = time.perf_counter()
        factor = self.plan.optim.factor(index, self.plan.steps)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step(factor)
        else:
            self.optimizer.forget()
        updated = time.perf_counter()
        seconds = {"data": loaded - started, "compute": computed - loaded, "update": updated - computed}
        return Step(index + 1, loss, losses, datasets, num_tokens, norm, factor, seconds)

    def _counts(self, shares: Sequence[MicroBatch]) -> tuple[dict[str, tuple[int, int]], int]:
        """Terms of the loss and examples by task, and tokens, over all processes."""
        tasks = list(self.model.tasks)
        table = torch.zeros(len(tasks) + 1, 2, dtype=torch.float64)
        for batch in (share.batch for share in shares if share.counts):
            for task, part in batch.by_task.items():
                table[tasks.index(task)] += torch.tensor([part.data.count, len(part.positions)], dtype=torch.float64)
            table[-1, 0] += batch.num_tokens
        rows = self.process_group.all_reduce(table.to(self.process_group.device)).long().tolist()
        return {task: (row[0], row[1]) for task, row in zip(tasks, rows, strict=False) if row[1]}, rows[-1][0]

    def _differentiate(
        self, shares: Sequence[MicroBatch], weights: Mapping[str, float], conditions: Sequence[Condition]
    ) -> dict[str, float]:
        """Gradients of all shares; the loss's sum by task, over all processes."""
        sums = torch.zeros(len(self.model.tasks), dtype=torch.float64, device=self.process_group.device)
        order = {task: number for number, task in enumerate(self.model.tasks)}
        device = torch.device(self.process_group.device)
        autocast = self.plan.train.precision == "bf16"
        for number, (batch, counts) in enumerate(shares):
            last = number == len(shares) - 1
            # The penalty is of the whole step, and every process adds the same.
            penalty = (conditions, 1.0 / self._num_examples) if last else None
            with ExitStack() as stack:
                if not last and isinstance(self.objective, DistributedDataParallel):
                    stack.enter_context(self.objective.no_sync())
                with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                    used = weights if counts else dict.fromkeys(batch.by_task, 0.0)
                    loss, found = self.objective(batch.to(device), used, penalty)
                loss.backward()
            for task, total in found.items():
                sums[order[task]] += total.double() * counts
        totals = self.process_group.all_reduce(sums).tolist()
        return {task: totals[number] for task, number in order.items()}

    def _norm(self) -> float:
        """Norm of the gradient, which is clipped on the way."""
        limit = self.plan.optim.max_grad_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.optimizer.parameters, limit)
        return float(norm.full_tensor() if self._sharded else norm)  # type: ignore[attr-defined]
