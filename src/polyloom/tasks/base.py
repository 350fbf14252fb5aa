"""The base class of tasks.

A task owns its settings, its record type, the encoding of records, its head, loss and predictions, its metrics and
majority baseline, the formats of its inputs and predictions, and the attributes that exports and reports need.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from polyloom.conditions import Condition
from polyloom.data.catalog import Corpus
from polyloom.data.kinds import RECORDS, Format, RecordKind
from polyloom.data.records import Kind, Prediction, Record
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConditionError, ConfigError
from polyloom.io.untrusted import is_printable
from polyloom.metrics.score import METRICS, Array, Metric
from polyloom.ranges import Count, NotNegative
from polyloom.tasks.padding import Integers

EncodedExample = Mapping[str, Any]  # a stored example: integers and arrays of integers, by column
Columns = Mapping[str, Literal["int", "ints"]]
Head = Literal["token-classification", "sequence-classification", "language-modelling"]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Settings of a task."""

    labels: Count | tuple[str, ...] | None = None
    """The label set as a list of names, which fixes it: other labels in the data are an error. Or the number of labels,
    for planning. Default: the labels of the training data."""
    weight: NotNegative = 1.0
    """Factor of the task's loss in training. Weights are not normalised: 2 doubles the gradient of the task and leaves
    that of other tasks as it is. With 0 the task contributes no gradient; its loss is still computed and logged.
    Validation and evaluation do not use it."""
    metrics: tuple[str, ...] = ()
    """Names of metrics, registered ones included. The first one selects checkpoints, except for translation, where
    perplexity does. Default: the metrics of the task."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels; none if only their number is known."""
        return self.labels if isinstance(self.labels, tuple) else ()

    @property
    def num_labels(self) -> int | None:
        """The number of labels, if it is known."""
        return len(self.labels) or None if isinstance(self.labels, tuple) else self.labels

    def settings(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults as plain data, except the labels and the weight.

        Labels are stored apart. The weight belongs to the training of a recipe, not to the trained model.
        """
        default, apart = asdict(type(self)()), ("labels", "weight")
        return {key: value for key, value in asdict(self).items() if key not in apart and value != default[key]}


class Tokens(NamedTuple):
    """The tokens of one row of a batch, special tokens included."""

    ids: Integers
    types: Integers | None = None
    """Type ids, of pairs."""
    positions: Integers | None = None
    """Positions, of a decoder. Where they begin again, another text begins, which sees nothing of the one before."""


class Example(NamedTuple):
    """An encoded example with its condition; its key seeds everything random about it."""

    condition: Condition
    row: EncodedExample
    key: int = 0


@dataclass(frozen=True)
class TaskBatch:
    """Examples of one task as rows of a batch; a long sentence takes several rows."""

    sequences: Sequence[Tokens]
    """Tokens of each row."""
    examples: Sequence[int]
    """The position of the example that each row belongs to."""
    targets: Mapping[str, Tensor]
    """Tensors that the head needs beside hidden states."""
    count: int
    """Number of terms that the loss sums up."""
    decoder: Sequence[Tokens] = ()
    """Decoder input of each row, for tasks that have one."""
    rows: slice = field(default_factory=lambda: slice(0))
    """Its rows in the batch; set by `make_batch`."""
    positions: Sequence[int] = ()
    """The position of each example among those of the batch; set by `make_batch`."""

    def map(self, function: Callable[[Tensor], Tensor]) -> "TaskBatch":
        """Apply a function to all targets."""
        return replace(self, targets={name: function(tensor) for name, tensor in self.targets.items()})


@dataclass(frozen=True)
class HeadInputs:
    """The inputs of a head for the rows of its task."""

    hidden_BTD: Tensor
    """Last hidden states."""
    vocabulary: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """Function from single states ``[N, D]``, the row of each ``[N]`` and candidates ``[V]`` to logits ``[N, V]``. It
    applies the inverse of the row's invertible adapter. Without candidates (``None``), V is the whole vocabulary."""
    classify: Callable[[Tensor], Tensor] | None = None
    """Applies the classifier that the method generated for each row, where it generates classifiers."""


class Task(nn.Module, ABC):
    """Base class of tasks: a task with its head.

    Args:
        config: Its settings, with the label set in order where it has one.
        width: Width of the hidden states.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    """Class of its settings, a frozen dataclass."""
    name: ClassVar[str]
    """Name in recipes and conditions."""
    kind: ClassVar[Kind]
    """Name of the kind of its records, which says how inputs are read and predictions written."""
    columns: ClassVar[Columns]
    """Columns of its encoded examples, beside ``length``."""
    metrics: ClassVar[tuple[Metric, ...]]
    """Its metrics, unless a recipe names others; the first one selects checkpoints."""
    summary: ClassVar[str]
    """One line for `polyloom list tasks`."""
    needs_labels: ClassVar[bool] = True
    """Whether it has a label set."""
    raw_text: ClassVar[bool] = False
    """Whether its training data is raw text, so that stages for raw text use it."""
    generates: ClassVar[bool] = False
    """Whether its predictions are text that a decoder generates."""
    bilingual: ClassVar[bool] = False
    """Whether its conditions name two languages."""
    uses_lm_head: ClassVar[bool] = False
    """Whether it ends in the backbone's own language-modelling head."""
    addable: ClassVar[bool] = True
    """Whether it can be added to a trained run."""
    outputs: ClassVar[tuple[Format, ...]] = ()
    """Formats of streams that can hold its predictions. Default: those of its kind of record."""
    export_head: ClassVar[Head | None] = None
    """What its head computes, for formats of other libraries: logits of labels for every token or for the whole
    sequence, or of the vocabulary. ``None``: something that no other format can hold."""
    label_smoothing: float = 0.0
    """Share of the target that training spreads over all labels."""

    def __init__(self, config: TaskConfig, *, width: int) -> None:  # noqa: ARG002 - for heads
        super().__init__()
        self.config = config
        self.labels = config.label_names
        if wrong := [label for label in self.labels if not is_printable(label)]:  # it could forge lines of an output
            raise ConfigError("tasks", [f"tasks.{self.name}.labels: {wrong[0]!r} has a control character."])

    # -- settings ----------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the settings beside the labels that are needed to build it again, as plain data."""
        return self.config.settings()

    def configure(self, config: TaskConfig, *, backbone: Any, pretrained: bool, tokenizer: Tokenizer) -> None:  # noqa: ARG002
        """Set the attributes that depend on the backbone.

        Args:
            config: The settings of the recipe.
            backbone: Transformers' configuration of the backbone.
            pretrained: Whether the backbone was pretrained; otherwise it is trained from scratch.
            tokenizer: The tokenizer.
        """
        return

    def add_language(self, name: str, *, like: str) -> None:  # noqa: ARG002 - for translation
        """Prepare for a language that was added to a trained run, with `like` as the most similar known one."""
        return

    def updated(self, config: TaskConfig) -> TaskConfig:
        """Return the settings of a recipe, with what `add_language` has changed."""
        return config

    # -- from records to batches -------------------------------------------------------------------------------------

    @classmethod
    def records(cls, corpus: Corpus, condition: Condition) -> Iterator[Record]:  # noqa: ARG003 - for translation
        """Read the records of a corpus for this task."""
        return corpus.records(cls.kind)

    @classmethod
    def check_languages(cls, condition: Condition) -> None:
        """Raise unless the condition names as many languages as the task needs."""
        if cls.bilingual and condition.target is None:
            raise ConditionError(
                f"condition {condition}: {cls.name} needs two languages. Write {cls.name}/source/target."
            )

    def check(self, condition: Condition, tokenizer: Tokenizer) -> None:  # noqa: ARG002 - for translation
        """Raise unless the task can be done in the condition's languages with this tokenizer."""
        self.check_languages(condition)

    @classmethod
    @abstractmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Turn records into encoded examples.

        Args:
            records: Records of this task's kind.
            tokenizer: The tokenizer.
            index: Numbers of the labels, to which new ones are added. Without it labels are left out.
        """

    def prompt(self, row: EncodedExample) -> EncodedExample:
        """Remove the target from an encoded example, for tasks that generate it."""
        raise NotImplementedError

    def excerpt(self, row: EncodedExample, key: int, *, max_length: int) -> EncodedExample:  # noqa: ARG002 - for lm
        """Return the part of an encoded example that a step of training uses; by default all of it."""
        return row

    def is_cut(self, row: EncodedExample, *, tokenizer: Tokenizer, max_length: int) -> bool:  # noqa: ARG002 - for words
        """Return whether `collate` cuts an encoded example."""
        return int(row["length"]) > max_length

    def split(self, record: Record, *, tokenizer: Tokenizer, max_length: int) -> list[Record]:  # noqa: ARG002
        """Split a record that is too long into records whose texts are generated one by one and joined."""
        return [record]

    @abstractmethod
    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out examples as rows of a batch."""

    @classmethod
    def relabel(cls, row: EncodedExample, numbers: Array) -> EncodedExample:
        """Translate the label numbers of an encoded example into this model's."""
        return {**row, "labels": numbers[row["labels"]]} if "labels" in row else row

    # -- the head ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the loss over `rows.count` terms."""

    @abstractmethod
    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Predict every example."""

    def confidences(self, states: HeadInputs, rows: TaskBatch, predictions: Sequence[Any]) -> list[Any]:  # noqa: ARG002
        """Return the probability of each prediction, one per word where a prediction has one label per word."""
        return [None] * len(predictions)

    def logits(self, states: HeadInputs) -> Tensor:
        """Compute the logits of the labels, of every token or of the sequence, as `export_head` says."""
        raise NotImplementedError

    # -- evaluation --------------------------------------------------------------------------------------------------

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Compute the statistics ``[N, P]`` of every prediction, where all metrics have the same ones."""
        raise NotImplementedError

    def measure(self, records: Sequence[Any], predictions: Sequence[Any], language: str) -> Mapping[Metric, Array]:  # noqa: ARG002
        """Compute the statistics of every metric of the task; `language` is that of the predictions."""
        return dict.fromkeys(self.metrics, self.statistics(records, predictions))

    def chosen_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics that the settings name, else those of the task; the first one selects checkpoints."""
        return tuple(METRICS.find(name) for name in self.config.metrics) or self.metrics

    def measure_chosen(
        self, records: Sequence[Any], predictions: Sequence[Any], language: str
    ) -> Mapping[Metric, Array]:
        """Compute the statistics of the chosen metrics, the selecting one first; see `measure`."""
        measured = self.measure(records, predictions, language)
        chosen = {}
        for metric in self.chosen_metrics():
            if metric in measured:
                chosen[metric] = measured[metric]
            elif metric.measure:  # a registered metric, which gets predictions as `Run.predict` returns them
                typed = [self.prediction(record, p, None) for record, p in zip(records, predictions, strict=True)]
                chosen[metric] = metric.measure(records, typed)
            else:  # another function of the same counts
                chosen[metric] = next(array for own, array in measured.items() if own.statistics == metric.statistics)
        return chosen

    @classmethod
    def can_measure(cls, metric: Metric) -> bool:
        """Return whether a recipe can name a metric for this task."""
        return any(own.statistics == metric.statistics for own in cls.metrics) or (
            metric.measure is not None and cls.kind in metric.kinds and bool(cls.formats())
        )

    @classmethod
    def majority(cls, records: Iterable[Record]) -> float:  # noqa: ARG003 - for tasks with labels
        """Score the best constant prediction for these records; nan where there is no such thing."""
        return math.nan

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:  # noqa: ARG003 - for tasks that predict
        """List which parts of a prediction are wrong, such as words, counted from 0; ``[0]`` if it has one part."""
        return []

    # -- predictions -------------------------------------------------------------------------------------------------

    @classmethod
    def record_kind(cls) -> RecordKind:
        """Return the kind of its records."""
        return RECORDS.find(cls.kind)

    @classmethod
    def formats(cls) -> dict[Format, Format]:
        """Return the formats of inputs, each with that of predictions by default; none if nothing is predicted."""
        kind = cls.record_kind()
        outputs = cls.outputs or kind.outputs
        return {source: target if target in outputs else outputs[0] for source, target in kind.inputs.items()}

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> Prediction:
        """Turn a decoded value into the prediction that `Run.predict` returns, of the type that the kind names.

        Args:
            record: The record that was predicted.
            decoded: What `decode` returned for it.
            score: What `confidences` returned for it; ``None`` if it was not computed.
        """
        raise NotImplementedError


def vocabulary_losses(states: HeadInputs, rows: TaskBatch, *, smoothing: float = 0.0) -> Tensor:
    """Compute the cross entropy of every token to predict, ``[N]``, in the order of `tokens_to_predict`.

    Only the states that predict something go through the vocabulary, which costs more than the layers of a small
    backbone. With ``candidates_V`` among the targets, tokens compete with these candidates only, and labels are
    positions in them.

    Args:
        states: Inputs of the head.
        rows: The rows, with ``row_N``, ``place_N`` and ``labels_N`` among their targets.
        smoothing: Label smoothing: this share of the target is spread evenly over the vocabulary.
    """
    row_N, place_N = rows.targets["row_N"], rows.targets["place_N"]
    hidden_ND = states.hidden_BTD[row_N, place_N]
    logits_NV = states.vocabulary(hidden_ND, row_N, rows.targets.get("candidates_V")).float()
    return F.cross_entropy(logits_NV, rows.targets["labels_N"], reduction="none", label_smoothing=smoothing)


def choice_loss(logits_BC: Tensor, mask_BC: Tensor, targets_B: Tensor, *, smoothing: float) -> Tensor:
    """Sum the cross entropy of one choice per row, among as many candidates as its mask has.

    `F.cross_entropy` would spread label smoothing over masked candidates as well, whose log-probability is -inf.

    Args:
        logits_BC: Logits of the candidates.
        mask_BC: Whether there is a candidate; every row has one.
        targets_B: Position of the right one.
        smoothing: Label smoothing, spread over the candidates of a row.
    """
    logs_BC = logits_BC.float().masked_fill(~mask_BC, -math.inf).log_softmax(-1)
    right_B = logs_BC.gather(-1, targets_B[:, None])[:, 0]
    spread_B = logs_BC.masked_fill(~mask_BC, 0.0).sum(-1) / mask_BC.sum(-1)
    return -((1 - smoothing) * right_B + smoothing * spread_B).sum()


def linear_classifier(width: int, num_labels: int) -> nn.Linear:
    """Build a classifier that starts near zero, as BERT's do."""
    classifier = nn.Linear(width, num_labels)
    nn.init.normal_(classifier.weight, std=0.02)
    nn.init.zeros_(classifier.bias)
    return classifier
