"""Predict records: sorted by length within a window, batched by tokens, returned in order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from polyloom.backbones.decoding import Decoding
from polyloom.conditions import Condition
from polyloom.data.records import Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.inference.cache import WeightCache
from polyloom.metrics.score import Array, Metric
from polyloom.model import Model
from polyloom.tasks.base import Example
from polyloom.tasks.batch import Batch, make_batch
from polyloom.tasks.translation import end_of

WINDOW = 512  # records that are sorted together; also how far predictions for a stream may lag behind
TOKENS = 4096  # of a batch, padding included
Progress = Callable[[int], None]


class Predictor:
    """A model with its tokenizer, ready to predict.

    Args:
        model: A model with heads for its tasks.
        tokenizer: The tokenizer that the model was trained with.
        max_length: Tokens of a row. Default: as many as the backbone allows.
        decoding: How text is generated. Default: beam search with five beams.

    Attributes:
        judge: Measures generated text beside the metrics of its task, given records and predictions. Default: none.
    """

    judge: Callable[[Sequence[Record], Sequence[str]], Mapping[Metric, Array]] | None = None

    def __init__(
        self, model: Model, *, tokenizer: Tokenizer, max_length: int | None = None, decoding: Decoding | None = None
    ) -> None:
        self.model, self.tokenizer, self.decoding = model, tokenizer, decoding or Decoding()
        self.cache = WeightCache(model)
        self.max_length = min(max_length or model.backbone.max_length, model.backbone.max_length)

    def predict(self, records: Iterable[Record], condition: Condition, *, losses: bool = False) -> Iterator[Any]:
        """Predict records of one condition; see `predict_mixed`."""
        self._require(condition)
        yield from self.predict_mixed(((condition, record) for record in records), losses=losses)

    def predict_mixed(
        self, inputs: Iterable[tuple[Condition, Record]], *, losses: bool = False, confidences: bool = False
    ) -> Iterator[Any]:
        """Predict records of any conditions, which share batches.

        Args:
            inputs: Conditions and records. No more than a window of them is held in memory.
            losses: For tasks that generate text: do not generate, but return (sum, count) of the losses of the record's
                own text.
            confidences: Return pairs of the prediction and its confidence, as `Task.confidences` gives it.

        Yields:
            The prediction for each input, in order.
        """
        stream, seen = iter(inputs), 0
        while window := list(islice(stream, WINDOW)):
            # Random choices for a record (masks) depend on its place in the corpus alone.
            examples = self._encode(window, first_key=seen)
            seen += len(window)
            generated = [not losses and self.model.task(c.task).generates for c, _ in window]
            prompts = [self._prompt(e) for e, generates in zip(examples, generated, strict=True) if generates]
            texts = iter(self._window(prompts, self._generate))
            decode = partial(self.model.predict, confidences=confidences)
            decoded = iter(self._window([e for e, g in zip(examples, generated, strict=True) if not g], decode))
            for generates in generated:
                if generates:
                    yield (next(texts), None) if confidences else next(texts)
                else:
                    yield next(decoded)

    def translate(self, asked: Sequence[tuple[Condition, Record]], *, progress: Progress = lambda _: None) -> list[str]:
        """Generate text for records of any conditions, in order.

        All inputs are sorted by length together, so that batches are full: a step of beam search takes hardly longer
        for many rows than for one.

        Args:
            asked: Conditions and records.
            progress: Called with the number of texts of each finished batch.
        """
        examples = [self._prompt(example) for example in self._encode(asked)]

        def generate(batch: Batch) -> list[Any]:
            texts = self._generate(batch)
            progress(len(texts))
            return texts

        return self._window(examples, generate)

    def _prompt(self, example: Example) -> Example:
        """Remove the target of an example whose target is to be generated."""
        return example._replace(row=self.model.task(example.condition.task).prompt(example.row))

    def _require(self, condition: Condition) -> None:
        self.model.method.require_supported(condition)
        self.model.task(condition.task)

    def _encode(self, inputs: Sequence[tuple[Condition, Record]], *, first_key: int = 0) -> list[Example]:
        by_condition: dict[Condition, list[int]] = {}
        for place, (condition, _) in enumerate(inputs):
            by_condition.setdefault(condition, []).append(place)
        examples: dict[int, Example] = {}
        for condition, places in by_condition.items():
            self._require(condition)
            rows = self.model.task(condition.task).encode([inputs[place][1] for place in places], self.tokenizer)
            examples |= {p: Example(condition, row, first_key + p) for p, row in zip(places, rows, strict=True)}
        return [examples[place] for place in range(len(inputs))]

    def _generate(self, batch: Batch) -> list[str]:
        weights = self.cache.rows(batch.conditions)
        ids = self.model.generate_ids(batch, eos_id=end_of(self.tokenizer), decoding=self.decoding, weights=weights)
        return [self.tokenizer.decode(row) for row in ids]

    @torch.inference_mode()
    def _window(self, examples: Sequence[Example], run: Callable[[Batch], list[Any]]) -> list[Any]:
        predictions: dict[int, Any] = {}
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        for group in self._groups(examples):
            chosen = [examples[i] for i in group]
            batch = make_batch(chosen, tasks=self.model.tasks, tokenizer=self.tokenizer, max_length=self.max_length)
            device = next(self.model.backbone.parameters()).device
            predictions |= zip(group, run(batch.to(device)), strict=True)
        for module in was_training:
            module.training = True
        return [predictions[i] for i in range(len(examples))]

    def _groups(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        """Yield the positions of examples of similar length that share a batch."""
        group: list[int] = []
        for position in sorted(range(len(examples)), key=lambda i: examples[i].row["length"]):
            length = min(examples[position].row["length"], self.max_length)
            if group and (len(group) + 1) * length > TOKENS:
                yield group
                group = []
            group.append(position)
        if group:
            yield group
