"""From records to answers: sorted by length within a window, batched by tokens, given back in order."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.data.records import Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.inference.cache import WeightCache
from polyloom.metrics.score import PERPLEXITY, Array, Metric, Score, signature
from polyloom.model import Model
from polyloom.tasks.base import Example
from polyloom.tasks.batch import Batch, make_batch
from polyloom.tasks.translation import end_of

WINDOW = 512  # records that are sorted among themselves; also how far answers to a stream may lag behind
TOKENS = 4096  # of a batch, padding included
Progress = Callable[[int], None]


class Predictor:
    """A model that answers.

    Args:
        model: With heads for its tasks.
        tokenizer: The tokenizer.
        max_length: Tokens of a row; what the backbone allows by default.
        decoding: How text is generated.

    Attributes:
        judge: Measures generated text beside the metrics of its task, given what was asked and what was answered.
    """

    judge: Callable[[Sequence[Record], Sequence[str]], Mapping[Metric, Array]] | None = None

    def __init__(
        self, model: Model, *, tokenizer: Tokenizer, max_length: int | None = None, decoding: Decoding | None = None
    ) -> None:
        self.model, self.tokenizer, self.decoding = model, tokenizer, decoding or Decoding()
        self.cache = WeightCache(model)
        self.max_length = min(max_length or model.backbone.max_length, model.backbone.max_length)

    def predict(
        self, records: Iterable[Record], condition: Condition, *, losses: bool = False, confidence: bool = False
    ) -> Iterator[Any]:
        """The answer to each record, in order; a generator that needs no more than a window at a time.

        With `losses`, of text that would be generated, how well the right one is predicted: (sum, count) of its losses.
        With `confidence`, pairs of a prediction and its probability; of words, the probability of each.
        """
        self.model.method.require_supported(condition)
        task = self.model.task(condition.task)
        stream, seen = iter(records), 0
        while window := list(islice(stream, WINDOW)):
            rows = list(task.encode(window, self.tokenizer))
            assert len(rows) == len(window), "every record has an answer"
            # What is random about a record (masks) depends on its place in the corpus alone.
            examples = [Example(condition, row, seen + i) for i, row in enumerate(rows)]
            seen += len(window)
            if task.generates and not losses:
                prompts = [example._replace(row=task.prompt(example.row)) for example in examples]
                yield from self._window(prompts, self._write)
            else:
                yield from self._window(examples, partial(self.model.predict, confidence=confidence))

    def translate(self, asked: Sequence[tuple[Condition, Record]], *, progress: Progress = lambda _: None) -> list[str]:
        """What is generated for records of any conditions, in order.

        All share batches of similar length: a step of the search takes hardly longer for many rows than for one.
        `progress` hears how many more are done.
        """
        by_condition: dict[Condition, list[int]] = {}
        for place, (condition, _) in enumerate(asked):
            by_condition.setdefault(condition, []).append(place)
        examples: dict[int, Example] = {}
        for condition, places in by_condition.items():
            self.model.method.require_supported(condition)
            task = self.model.task(condition.task)
            rows = task.encode([asked[place][1] for place in places], self.tokenizer)
            examples |= {p: Example(condition, task.prompt(row), p) for p, row in zip(places, rows, strict=True)}

        def write(batch: Batch) -> list[Any]:
            written = self._write(batch)
            progress(len(written))
            return written

        return self._window([examples[place] for place in range(len(asked))], write)

    def _write(self, batch: Batch) -> list[Any]:
        weights = self.cache.rows(batch.conditions)
        written = self.model.generate_ids(batch, eos_id=end_of(self.tokenizer), decoding=self.decoding, weights=weights)
        return [self.tokenizer.decode(ids) for ids in written]

    @torch.inference_mode()
    def _window(self, examples: Sequence[Example], answer: Callable[[Batch], list[Any]]) -> list[Any]:
        found: dict[int, Any] = {}
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        for group in self._groups(examples):
            chosen = [examples[i] for i in group]
            batch = make_batch(chosen, tasks=self.model.tasks, tokenizer=self.tokenizer, max_length=self.max_length)
            device = next(self.model.backbone.parameters()).device
            found |= zip(group, answer(batch.to(device)), strict=True)
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


def score_corpora(
    predictor: Predictor,
    condition: Condition,
    corpora: Sequence[Corpus],
    *,
    losses: bool = False,
    answers: Sequence[Any] | None = None,
) -> list[Score]:
    """Score a condition on corpora, by all metrics of its task; the selecting one first.

    Args:
        predictor: A model that answers.
        condition: The task, and the languages whose weights are used.
        corpora: What it is asked.
        losses: Text that would be generated is scored by its perplexity.
        answers: What is answered, if that is known already.
    """
    task = predictor.model.task(condition.task)
    records = [record for corpus in corpora for record in task.records(corpus, condition)]
    if answers is None:
        answers = list(predictor.predict(records, condition, losses=losses))
    if task.generates and losses:
        measured: Mapping[Metric, Array] = {PERPLEXITY: np.array(answers, dtype=np.float64)}
    else:
        measured = task.measure(records, answers, condition.languages[-1])
        if task.generates and predictor.judge:
            measured = {**measured, **predictor.judge(records, answers)}
    name = "+".join(corpus.name for corpus in corpora)
    sha256 = corpora[0].sha256 if len(corpora) == 1 else _hash_of_all(corpora)
    return [
        Score(
            metric,
            statistics_NP,
            signature(metric, statistics_NP, condition=str(condition), corpus=name, sha256=sha256),
        )
        for metric, statistics_NP in measured.items()
    ]


def _hash_of_all(corpora: Sequence[Corpus]) -> str:
    return hashlib.sha256("+".join(corpus.sha256 for corpus in corpora).encode()).hexdigest()
