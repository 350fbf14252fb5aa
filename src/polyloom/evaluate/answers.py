"""From records to answers: sorted by length within a window, batched by tokens, given back in order."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from polyloom.data.catalog import Corpus
from polyloom.data.pieces import Pieces
from polyloom.data.records import Record
from polyloom.metrics.score import Score, signature
from polyloom.model import Model
from polyloom.tasks.batch import Example, make_batch
from polyloom.types import Condition

WINDOW = 512  # records that are sorted among themselves; also how far answers to a stream may lag behind
TOKENS = 4096  # of a batch, padding included


class Answering:
    """A model that answers.

    Args:
        model: With heads for its tasks.
        pieces: The tokenizer.
        max_length: Tokens of a row; what the backbone allows by default.
    """

    def __init__(self, model: Model, *, pieces: Pieces, max_length: int | None = None) -> None:
        self.model, self.pieces = model, pieces
        self.max_length = min(max_length or model.backbone.max_length, model.backbone.max_length)

    def answers(self, records: Iterable[Record], condition: Condition) -> Iterator[Any]:
        """The answer to each record, in order; a generator that needs no more than a window at a time."""
        self.model.method.check_served(condition)
        task = self.model.task(condition.task)
        stream, seen = iter(records), 0
        while window := list(islice(stream, WINDOW)):
            rows = list(task.encode(window, self.pieces))
            assert len(rows) == len(window), "every record has an answer"
            # What is random about a record (masks) depends on its place in the corpus alone.
            examples = [Example(condition, row, seen + i) for i, row in enumerate(rows)]
            seen += len(window)
            yield from self._window(examples)

    @torch.inference_mode()
    def _window(self, examples: Sequence[Example]) -> list[Any]:
        found: dict[int, Any] = {}
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        for group in self._groups(examples):
            chosen = [examples[i] for i in group]
            batch = make_batch(chosen, tasks=self.model.tasks, pieces=self.pieces, max_length=self.max_length)
            device = next(self.model.backbone.parameters()).device
            found |= zip(group, self.model.answers(batch.to(device)), strict=True)
        for module in was_training:
            module.training = True
        return [found[i] for i in range(len(examples))]

    def _groups(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        """Positions of examples that go into one batch, of similar length."""
        group: list[int] = []
        for position in sorted(range(len(examples)), key=lambda i: examples[i].row["length"]):
            length = min(examples[position].row["length"], self.max_length)
            if group and (len(group) + 1) * length > TOKENS:
                yield group
                group = []
            group.append(position)
        if group:
            yield group


def score_corpora(answering: Answering, condition: Condition, corpora: Sequence[Corpus]) -> list[Score]:
    """Score a condition on corpora, by all metrics of its task; the selecting one first."""
    task = answering.model.task(condition.task)
    records = [record for corpus in corpora for record in corpus.records(task.kind)]
    parts_NP = task.parts(records, list(answering.answers(records, condition)))
    name = "+".join(corpus.name for corpus in corpora)
    sha256 = corpora[0].sha256 if len(corpora) == 1 else _hash_of_all(corpora)
    return [
        Score(metric, parts_NP, signature(metric, parts_NP, condition=str(condition), corpus=name, sha256=sha256))
        for metric in task.metrics
    ]


def _hash_of_all(corpora: Sequence[Corpus]) -> str:
    return hashlib.sha256("+".join(corpus.sha256 for corpus in corpora).encode()).hexdigest()
