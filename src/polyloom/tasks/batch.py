"""Batches: rows of any tasks and conditions side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyloom.data.pieces import Pieces
from polyloom.tasks.base import Example, Rows, Task, Tokens
from polyloom.types import Condition


class Part(NamedTuple):
    """The rows of one task in a batch, and the positions that their examples had among those given."""

    rows: slice
    data: Rows
    positions: Sequence[int]


@dataclass(frozen=True)
class Batch:
    """What the model runs on.

    Attributes:
        inputs: What the backbone takes.
        conditions: One per row.
        parts: By task.
    """

    inputs: Mapping[str, Tensor]
    conditions: Sequence[Condition]
    parts: Mapping[str, Part]

    @property
    def num_tokens(self) -> int:
        """Tokens, padding left out."""
        return int(self.inputs["attention_mask"].sum())

    def to(self, device: Any) -> "Batch":
        """Move everything."""
        parts = {task: part._replace(data=part.data.to(device)) for task, part in self.parts.items()}
        return Batch({name: tensor.to(device) for name, tensor in self.inputs.items()}, self.conditions, parts)


def make_batch(examples: Sequence[Example], *, tasks: Mapping[str, Task], pieces: Pieces, max_length: int) -> Batch:
    """Lay out examples as one batch, task after task."""
    by_task: dict[str, list[int]] = {}
    for position, example in enumerate(examples):
        by_task.setdefault(example.condition.task, []).append(position)
    parts: dict[str, Part] = {}
    sequences: list[Tokens] = []
    decoder: list[Tokens] = []
    conditions: list[Condition] = []
    for task, positions in sorted(by_task.items()):
        chosen = [examples[i] for i in positions]
        data = tasks[task].collate(chosen, pieces=pieces, max_length=max_length)
        begin = len(sequences)
        sequences += data.sequences
        decoder += data.decoder
        conditions += [examples[positions[i]].condition for i in data.examples]
        parts[task] = Part(slice(begin, len(sequences)), data, positions)
    inputs = _pad(sequences, pieces)
    if decoder:
        inputs["decoder_input_ids"] = _pad(decoder, pieces)["input_ids"]  # what is behind the end is never looked at
    return Batch(inputs, conditions, parts)


def _pad(sequences: Sequence[Any], pieces: Pieces) -> dict[str, Tensor]:
    shape = (len(sequences), max(len(s.ids) for s in sequences))
    ids_BT = torch.full(shape, pieces.pad_id)
    mask_BT = torch.zeros(shape, dtype=torch.long)
    types_BT = torch.zeros(shape, dtype=torch.long)
    for i, (ids, types) in enumerate(sequences):
        ids_BT[i, : len(ids)] = torch.tensor(ids)
        mask_BT[i, : len(ids)] = 1
        if types is not None:
            types_BT[i, : len(ids)] = torch.tensor(types)
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    return inputs | {"token_type_ids": types_BT} if pieces.uses_types else inputs
