"""Predict records: sorted by length within a window, batched by tokens, returned in order.

The way of a prediction: `Predictor.predictions` takes a window of records and leaves out empty ones, `encode` tokenizes
them, `predict_encoded` sends those whose text is generated one way and all others another, `_run_in_batches` makes
batches, and the task turns what its head decoded into a prediction.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch

from polyloom.backbones.decoding import Decoding, FiniteRows
from polyloom.conditions import Condition
from polyloom.data.records import Prediction, Record
from polyloom.data.tokenization.sentences import join_sentences
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import PolyloomError, PredictionError
from polyloom.inference.cache import WeightCache
from polyloom.inference.predictions import describe_long
from polyloom.metrics.score import Array, Metric
from polyloom.model import Model, nonfinite_error
from polyloom.tasks.base import Example
from polyloom.tasks.batch import Batch, make_batch
from polyloom.tasks.translation import end_of

WINDOW = 512  # records that are sorted together; also how far predictions for a stream may lag behind
TOKENS = 4096  # of a batch, padding included
BEAMS = 5  # up to which a batch has that many tokens; more beams take smaller batches
Progress = Callable[[int], None]
Error = TypeVar("Error", bound=PolyloomError)


class Predictor:
    """A model with its tokenizer, ready to predict.

    Args:
        model: A model with heads for its tasks.
        tokenizer: The tokenizer that the model was trained with.
        max_length: Tokens of a row. Default: as many as the backbone allows.
        decoding: How text is generated. Default: beam search with five beams.

    Attributes:
        extra_metrics: Measures generated text by further metrics than those of its task. Default: none.
        cut: Number of records that were longer than `max_length` and were cut, by condition.
        split: Number of sources that were longer than `max_length` and were translated in parts, by condition.
    """

    extra_metrics: Callable[[Sequence[Record], Sequence[str]], Mapping[Metric, Array]] | None = None

    def __init__(
        self, model: Model, *, tokenizer: Tokenizer, max_length: int | None = None, decoding: Decoding | None = None
    ) -> None:
        self.model, self.tokenizer, self.decoding = model, tokenizer, decoding or Decoding()
        self.cache = WeightCache(model)
        self.cut: Counter[Condition] = Counter()
        self.split: Counter[Condition] = Counter()
        self.max_length = min(max_length or model.backbone.max_length, model.backbone.max_length)

    def predict(
        self, records: Iterable[Record], condition: Condition, *, losses: bool = False, strict: bool = True
    ) -> Iterator[Any]:
        """Predict records of one condition; see `predict_mixed`."""
        self._require(condition)
        yield from self.predict_mixed(((condition, record) for record in records), losses=losses, strict=strict)

    def predictions(
        self, inputs: Iterable[tuple[Condition, Record]], *, scores: bool = True, strict: bool = True
    ) -> Iterator[Prediction | PredictionError]:
        """Predict records of any conditions, as `Run.predict` returns predictions.

        Args:
            inputs: Conditions and records. No more than a window of them is held in memory.
            scores: Whether predictions have probabilities, which some tasks have to compute.
            strict: Whether a record that cannot be predicted raises an error; see `predict_mixed`.

        Yields:
            The prediction for each input, in order.
        """
        stream = iter(inputs)
        while window := list(islice(stream, WINDOW)):
            tasks = [self.model.task(condition.task) for condition, _ in window]
            # A sentence without words, or a translation of white space, is not run through the model.
            predictions = {
                place: task.record_kind().empty_prediction(record)
                for place, (task, (_, record)) in enumerate(zip(tasks, window, strict=True))
            }
            places = [place for place, prediction in predictions.items() if prediction is None]
            decoded = self.predict_mixed([window[place] for place in places], confidences=scores, strict=strict)
            for place, value in zip(places, decoded, strict=True):
                if isinstance(value, PredictionError):
                    predictions[place] = value
                else:
                    answer, score = value if scores else (value, None)
                    predictions[place] = tasks[place].prediction(window[place][1], answer, score)
            yield from predictions.values()

    def predict_mixed(
        self,
        inputs: Iterable[tuple[Condition, Record]],
        *,
        losses: bool = False,
        confidences: bool = False,
        strict: bool = True,
    ) -> Iterator[Any]:
        """Predict records of any conditions, which share batches.

        A source that is too long to be translated at once is translated in parts: sentence by sentence. Other records
        that are too long are cut. `cut` and `split` count both.

        Args:
            inputs: Conditions and records. No more than a window of them is held in memory.
            losses: For tasks that generate text: do not generate, but return (sum, count) of the losses of the record's
                own text.
            confidences: Return pairs of the prediction and its confidence, as `Task.confidences` gives it.
            strict: Whether a record that cannot be predicted, because the model's output for it is not finite, raises
                a `PredictionError`. Otherwise the error takes the place of the prediction.

        Yields:
            The prediction for each input, in order.
        """
        stream, seen = iter(inputs), 0
        while window := list(islice(stream, WINDOW)):
            # Random choices for a record (masks) depend on its place in the corpus alone.
            examples = self.encode(window, first_key=seen)
            seen += len(window)
            records = [record for _, record in window]
            for prediction in self.predict_encoded(examples, records, losses=losses, confidences=confidences):
                if strict and isinstance(prediction, PredictionError):
                    raise prediction
                yield prediction

    def predict_encoded(
        self, examples: Sequence[Example], records: Sequence[Record], *, losses: bool = False, confidences: bool = False
    ) -> list[Any]:
        """Predict records that are encoded already, as `predict_mixed` does; errors take the place of predictions."""
        # Text is generated token by token; everything else is decoded from one forward pass. Each has its own batches.
        generates = [not losses and self.model.task(example.condition.task).generates for example in examples]
        generated = [place for place, is_generated in enumerate(generates) if is_generated]
        decoded = [place for place, is_generated in enumerate(generates) if not is_generated]

        def decode(batch: Batch) -> list[Any]:
            return self.model.predict(batch, confidences=confidences, weights=self.cache.rows(batch.conditions))

        texts: list[Any] = self._texts([examples[p] for p in generated], [records[p] for p in generated])
        if confidences:  # a text has none
            texts = [(text, None) if isinstance(text, str) else text for text in texts]
        others = [examples[place] for place in decoded]
        self._count_cut(others)
        predictions: dict[int, Any] = dict(zip(generated, texts, strict=True))
        predictions |= zip(decoded, self._run_in_batches(others, decode), strict=True)
        return [predictions[place] for place in range(len(examples))]

    def translate(
        self, inputs: Sequence[tuple[Condition, Record]], *, progress: Progress = lambda _: None
    ) -> list[str]:
        """Generate text for records of any conditions, in order.

        All inputs are sorted by length together, so that batches are full: a step of beam search takes hardly longer
        for many rows than for one.

        Args:
            inputs: Conditions and records.
            progress: Called with the number of texts of each finished batch.
        """
        texts = []
        for text in self._texts(self.encode(inputs), [record for _, record in inputs], progress=progress):
            if isinstance(text, PredictionError):
                raise text
            texts.append(text)
        return texts

    def _texts(
        self, examples: Sequence[Example], records: Sequence[Record], *, progress: Progress = lambda _: None
    ) -> list[str | PredictionError]:
        """Generate the texts of examples. A source that is too long is generated in parts, which are joined."""
        parts = [self.prompts(example, record) for example, record in zip(examples, records, strict=True)]
        prompts = [prompt for example_parts in parts for prompt in example_parts]
        owners = [number for number, example_parts in enumerate(parts) for _ in example_parts]
        # Whether a prompt is the last of its example: progress counts texts, not parts.
        ends = [number + 1 == len(example_parts) for example_parts in parts for number in range(len(example_parts))]
        self._count_cut(prompts)

        # Beams multiply the rows of a step, so more beams than usual take smaller batches.
        tokens = TOKENS * BEAMS // max(BEAMS, self.decoding.beams)
        texts = self._run_in_batches(
            prompts, self._generate, tokens=tokens, finished=lambda group: progress(sum(ends[i] for i in group))
        )
        pieces: list[list[str | PredictionError]] = [[] for _ in examples]
        for owner, text in zip(owners, texts, strict=True):
            pieces[owner].append(text)
        return [join_texts(texts_of_example) for texts_of_example in pieces]

    def prompts(self, example: Example, record: Record) -> list[Example]:
        """Remove the target of an example whose target is to be generated; split the source if it is too long."""
        task = self.model.task(example.condition.task)
        rows = [task.prompt(example.row)]
        if task.is_cut(rows[0], tokenizer=self.tokenizer, max_length=self.max_length):
            parts = task.split(record, tokenizer=self.tokenizer, max_length=self.max_length)
            rows = [task.prompt(row) for row in task.encode(parts, self.tokenizer)] or rows
            self.split[example.condition] += len(parts) > 1
        return [example._replace(row=row) for row in rows]

    def _count_cut(self, examples: Iterable[Example]) -> None:
        for condition, row, _ in examples:
            if self.model.task(condition.task).is_cut(row, tokenizer=self.tokenizer, max_length=self.max_length):
                self.cut[condition] += 1

    def pop_length_warnings(self) -> dict[str, str]:
        """Return one sentence about inputs that were cut, and one about inputs that were split, since the last call."""
        sentences = {}
        for counts, became in ((self.cut, "cut"), (self.split, "split")):
            if sentence := describe_long(counts, became, max_length=self.max_length):
                sentences[became] = sentence
            counts.clear()
        return sentences

    def _require(self, condition: Condition) -> None:
        self.model.method.require_supported(condition)
        self.model.task(condition.task)

    def encode(self, inputs: Sequence[tuple[Condition, Record]], *, first_key: int = 0) -> list[Example]:
        """Encode records of any conditions; random choices for a record depend on `first_key` and its place."""
        by_condition: dict[Condition, list[int]] = {}  # tokenizers are faster on many texts at a time
        for place, (condition, _) in enumerate(inputs):
            by_condition.setdefault(condition, []).append(place)
        examples: dict[int, Example] = {}
        for condition, places in by_condition.items():
            self._require(condition)
            rows = self.model.task(condition.task).encode([inputs[place][1] for place in places], self.tokenizer)
            examples |= {p: Example(condition, row, first_key + p) for p, row in zip(places, rows, strict=True)}
        return [examples[place] for place in range(len(inputs))]

    def _generate(self, batch: Batch) -> list[str | PredictionError]:
        weights = self.cache.rows(batch.conditions)
        finite = FiniteRows(
            torch.ones(len(batch.conditions), dtype=torch.bool, device=batch.inputs["input_ids"].device)
        )
        ids = self.model.generate_ids(
            batch, eos_id=end_of(self.tokenizer), decoding=self.decoding, weights=weights, finite=finite
        )
        return [
            self.tokenizer.decode(row) if is_finite else nonfinite_error(condition)
            for condition, row, is_finite in zip(batch.conditions, ids, finite.rows_B.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def _run_in_batches(
        self,
        examples: Sequence[Example],
        run: Callable[[Batch], list[Any]],
        *,
        tokens: int = TOKENS,
        finished: Callable[[list[int]], None] = lambda _: None,
    ) -> list[Any]:
        """Run a function on batches of examples of similar length, and return its results in the order of examples."""
        # Dropout and the noise of methods would change predictions; a model in training goes on training afterwards.
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        results: dict[int, Any] = {}
        for group in group_by_length([self.length(example) for example in examples], tokens=tokens):
            # A batch mixes conditions: each row has weights of its own, so it gets what it would get alone.
            results |= zip(group, run(self.make_batch([examples[i] for i in group])), strict=True)
            finished(group)
        for module in was_training:
            module.training = True
        return [results[i] for i in range(len(examples))]

    def make_batch(self, examples: Sequence[Example]) -> Batch:
        """Lay out examples as one batch, on the device of the model."""
        batch = make_batch(examples, tasks=self.model.tasks, tokenizer=self.tokenizer, max_length=self.max_length)
        return batch.to(next(self.model.backbone.parameters()).device)

    def length(self, example: Example) -> int:
        """Return the number of tokens of an example: what is not cut takes several rows where it is long."""
        length, task = int(example.row["length"]), self.model.task(example.condition.task)
        is_cut = task.is_cut(example.row, tokenizer=self.tokenizer, max_length=self.max_length)
        return min(length, self.max_length) if is_cut else length


def join_texts(texts: Sequence[str | Error]) -> str | Error:
    """Join the texts of the parts of an input; without one of them there is no text."""
    for text in texts:
        if not isinstance(text, str):
            return text
    return texts[0] if len(texts) == 1 else join_sentences([text for text in texts if isinstance(text, str)])


def group_by_length(lengths: Sequence[int], *, tokens: int) -> Iterator[list[int]]:
    """Yield the positions of rows that share a batch, the shortest first: rows of similar length need little padding.

    Args:
        lengths: Number of tokens of each row.
        tokens: Budget of a batch, with padding. A row that is longer is alone.
    """
    group: list[int] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        # Rows are sorted, so this one is the longest of its batch, to which all others are padded.
        if group and (len(group) + 1) * lengths[position] > tokens:
            yield group
            group = []
        group.append(position)
    if group:
        yield group
