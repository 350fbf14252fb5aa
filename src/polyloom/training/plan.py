"""A stage with its settings and datasets: what `TrainLoop` trains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from polyloom.conditions import Condition
from polyloom.data.encoded import EncodedDataset
from polyloom.data.mixture import Mixture, MixtureConfig, steps_of_epochs
from polyloom.errors import TrainingError
from polyloom.methods.base import Stage
from polyloom.tasks.base import EncodedExample, Example, Task
from polyloom.training.config import OptimConfig, TrainConfig


@dataclass(frozen=True)
class TrainDataset:
    """An encoded dataset that trains the weights of a condition."""

    name: str
    """The condition, such as ``pos/en``. If the text is in another language, that follows: ``mlm/en/sw@sw``."""
    condition: Condition
    """The condition whose weights it trains."""
    dataset: EncodedDataset
    """The examples."""
    numbers: Any
    """The model's id of each label of the dataset; -1 for labels that the model does not have."""

    @cached_property
    def token_types(self) -> Any:
        """All token ids that occur in the raw text, sorted."""
        types = np.zeros(0, np.int64)
        for start in range(0, len(self.dataset), 10_000):  # bounds the memory
            rows = self.dataset.rows(range(start, min(start + 10_000, len(self.dataset))))
            types = np.union1d(types, np.concatenate([row["tokens"] for row in rows]))
        return types

    def examples(
        self,
        indices: Sequence[int],
        keys: Sequence[int],
        task: Task,
        *,
        packed_length: int = 0,
        restrict_candidates: bool = False,
    ) -> list[Example]:
        """Return examples for a batch.

        Args:
            indices: Their rows in the dataset.
            keys: Their random keys, see `Pick.key`.
            task: The task of the condition, which maps the labels.
            packed_length: Number of tokens that a line of raw text is filled up to with the lines that follow. Default:
                0, an example is one line. Ignored for other tasks.
            restrict_candidates: Whether masked tokens are predicted only among the tokens of this dataset. Ignored for
                other tasks.
        """
        rows: Sequence[EncodedExample]
        if packed_length and task.raw_text:
            rows = []
            for index in indices:
                # The first line of a block follows its last, so that one block is all that has to be read.
                tokens, starts = self.dataset.filled(index, "tokens", packed_length)
                if len(tokens) > packed_length:  # one long line: the task cuts it at a random place, as without packing
                    rows.append({"tokens": tokens, "length": len(tokens)})
                else:
                    rows.append({"tokens": tokens, "starts": starts, "length": packed_length})
        else:
            rows = self.dataset.rows(indices)
        # All rows share one array of candidates, so that `MaskedLm.collate` reads it once.
        if restrict_candidates and task.raw_text:
            rows = [{**row, "candidates": self.token_types} for row in rows]
        return [
            Example(self.condition, task.relabel(row, self.numbers), key) for row, key in zip(rows, keys, strict=True)
        ]


@dataclass(frozen=True)
class StagePlan:
    """A stage with all its settings and datasets."""

    stage: Stage
    """The stage of the method."""
    optim: OptimConfig
    """Settings of the optimizer."""
    train: TrainConfig
    """Settings of training."""
    mixture: MixtureConfig
    """Settings of the mixture."""
    datasets: tuple[TrainDataset, ...]
    """The datasets that it trains on."""
    groups: tuple[tuple[str, str], ...] = ()
    """Pairs of datasets that alternate, for the mixture strategy ``ratio``."""
    task_weights: Mapping[str, float] = field(default_factory=dict)
    """Factors of the losses of tasks; 1 for the others."""

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
        by_rows = self.train.rows_per_batch or (None if by_tokens else 32)
        return {"rows_per_batch": by_rows, "tokens_per_batch": by_tokens}

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
