"""Batches, which may mix rows of any tasks and conditions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.tasks.base import Example, Task, TaskBatch, Tokens
from polyloom.tasks.padding import padded


class TaskSlice(NamedTuple):
    """The rows of one task in a batch, with the positions of their examples in the input."""

    rows: slice
    data: TaskBatch
    positions: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """A batch of the model.

    Attributes:
        inputs: Inputs of the backbone.
        conditions: The condition of each row.
        by_task: The rows of each task.
    """

    inputs: Mapping[str, Tensor]
    conditions: Sequence[Condition]
    by_task: Mapping[str, TaskSlice]

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
        by_task = {task: part._replace(data=part.data.map(function)) for task, part in self.by_task.items()}
        return Batch({name: function(tensor) for name, tensor in self.inputs.items()}, self.conditions, by_task)


def make_batch(
    examples: Sequence[Example], *, tasks: Mapping[str, Task], tokenizer: Tokenizer, max_length: int
) -> Batch:
    """Lay out examples as one batch, task after task."""
    positions_of: dict[str, list[int]] = {}
    for position, example in enumerate(examples):
        positions_of.setdefault(example.condition.task, []).append(position)
    by_task: dict[str, TaskSlice] = {}
    sequences: list[Tokens] = []
    decoder: list[Tokens] = []
    conditions: list[Condition] = []
    for task, positions in sorted(positions_of.items()):
        chosen = [examples[i] for i in positions]
        data = tasks[task].collate(chosen, tokenizer=tokenizer, max_length=max_length)
        begin = len(sequences)
        sequences += data.sequences
        decoder += data.decoder
        conditions += [examples[positions[i]].condition for i in data.examples]
        by_task[task] = TaskSlice(slice(begin, len(sequences)), data, positions)
    inputs = _pad(sequences, tokenizer)
    if decoder:  # without a mask, because the decoder is causal
        inputs["decoder_input_ids"] = padded([s.ids for s in decoder], tokenizer.pad_id)
    return Batch(inputs, conditions, by_task)


def _pad(sequences: Sequence[Tokens], tokenizer: Tokenizer) -> dict[str, Tensor]:
    inputs = {"input_ids": padded([s.ids for s in sequences], tokenizer.pad_id)}
    inputs["attention_mask"] = padded([np.ones(len(s.ids), np.int64) for s in sequences], 0)
    if tokenizer.uses_types:
        types = (np.zeros(len(s.ids), np.int64) if s.types is None else s.types for s in sequences)
        inputs["token_type_ids"] = padded(list(types), 0)
    if any(sequence.positions is not None for sequence in sequences):
        positions = (np.arange(len(s.ids)) if s.positions is None else s.positions for s in sequences)
        inputs["position_ids"] = padded(list(positions), 0)
    return inputs
