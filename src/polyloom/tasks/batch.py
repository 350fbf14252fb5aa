"""Batches, which may mix rows of any tasks and conditions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.tasks.base import Example, Task, TaskBatch, Tokens
from polyloom.tasks.padding import padded


@dataclass(frozen=True)
class Batch:
    """A batch of the model."""

    inputs: Mapping[str, Tensor]
    """Inputs of the backbone."""
    conditions: Sequence[Condition]
    """The condition of each row."""
    by_task: Mapping[str, TaskBatch]
    """The rows of each task."""
    is_placeholder: bool = False
    """Whether it only stands in for examples that a process does not have. Its losses do not count."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens without padding."""
        return int(self.inputs["attention_mask"].sum())

    def to(self, device: Any) -> "Batch":
        """Move all tensors from the host to a device, without waiting for it if they are pinned."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=tensor.device.type == "cpu"))

    def pinned(self) -> "Batch":
        """Copy all tensors to pinned memory, from which a CUDA device copies while it computes."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        inputs = {name: function(tensor) for name, tensor in self.inputs.items()}
        return replace(self, inputs=inputs, by_task={task: rows.map(function) for task, rows in self.by_task.items()})


def make_batch(
    examples: Sequence[Example], *, tasks: Mapping[str, Task], tokenizer: Tokenizer, max_length: int
) -> Batch:
    """Lay out examples as one batch, task after task."""
    positions_of: dict[str, list[int]] = {}
    for position, example in enumerate(examples):
        positions_of.setdefault(example.condition.task, []).append(position)

    # The rows of a task are adjacent, so that its head takes a slice of the hidden states. A task may lay out one
    # example as several rows; all of them have its condition.
    by_task: dict[str, TaskBatch] = {}
    sequences: list[Tokens] = []
    decoder: list[Tokens] = []
    conditions: list[Condition] = []
    for task, positions in sorted(positions_of.items()):
        task_examples = [examples[i] for i in positions]
        rows = tasks[task].collate(task_examples, tokenizer=tokenizer, max_length=max_length)
        first = len(sequences)
        sequences += rows.sequences
        decoder += rows.decoder
        conditions += [task_examples[i].condition for i in rows.examples]
        by_task[task] = replace(rows, rows=slice(first, len(sequences)), positions=positions)

    inputs = {"input_ids": padded([s.ids for s in sequences], tokenizer.pad_id)}
    inputs["attention_mask"] = padded([np.ones(len(s.ids), np.int64) for s in sequences], 0)
    if tokenizer.uses_types:
        types = [np.zeros(len(s.ids), np.int64) if s.types is None else s.types for s in sequences]
        inputs["token_type_ids"] = padded(types, 0)
    if any(sequence.positions is not None for sequence in sequences):  # several texts are packed into a row
        place_ids = [np.arange(len(s.ids)) if s.positions is None else s.positions for s in sequences]
        inputs["position_ids"] = padded(place_ids, 0)
    if decoder:  # without a mask, because the decoder is causal
        inputs["decoder_input_ids"] = padded([s.ids for s in decoder], tokenizer.pad_id)
    return Batch(inputs, conditions, by_task)
