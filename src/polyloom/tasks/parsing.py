"""Dependency parsing: a deep biaffine parser that predicts trees with one root."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from polyloom.data.kinds import MAX_WORDS
from polyloom.data.records import Kind, ParsePrediction, Record, Tagged, Tree
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import ConditionError, PolyloomError
from polyloom.metrics.attachment import attachment_statistics, wrong_words
from polyloom.metrics.score import LAS, UAS, Array, Metric
from polyloom.nn.biaffine import Biaffine
from polyloom.nn.spanning_tree import maximum_spanning_tree
from polyloom.ranges import Count, Share
from polyloom.tasks.base import Columns, EncodedExample, HeadInputs, TaskBatch, TaskConfig
from polyloom.tasks.words import WordTask, encode_words, gather_words, pad_targets


@dataclass(frozen=True, kw_only=True)
class ParserConfig(TaskConfig):
    """Settings of the biaffine parser, by default those of Dozat & Manning (2017)."""

    arc_size: Count = 500
    """Width in which arcs are scored."""
    label_size: Count = 100
    """Width in which relations are scored."""
    dropout: Share = 0.33
    """Dropout after each of the four projections. Lower it for very short training."""


class Arcs(NamedTuple):
    """The prediction for a sentence: each word's head, counted from 1 with 0 for the root, and the relation to it."""

    heads: Sequence[int]
    relations: Sequence[str]


class Parsing(WordTask):
    """Dependency parsing: a head and a relation for every word."""

    Config: ClassVar[type[TaskConfig]] = ParserConfig
    config: ParserConfig
    name = "dep"
    kind: ClassVar[Kind] = "tree"
    word_targets: ClassVar[tuple[str, ...]] = ("heads", "labels")
    columns: ClassVar[Columns] = {
        "tokens": "ints", "counts": "ints", "reads": "ints", "heads": "ints", "labels": "ints",
    }  # fmt: skip
    metrics: ClassVar[tuple[Metric, ...]] = (LAS, UAS)
    summary = "dependency parsing: LAS, UAS"

    def __init__(self, config: ParserConfig, *, width: int) -> None:
        super().__init__(config, width=width)
        self.parser = Biaffine(
            width,
            num_relations=len(self.labels),
            arc_size=config.arc_size,
            label_size=config.label_size,
            dropout=config.dropout,
        )

    @classmethod
    def encode(
        cls, records: Sequence[Record], tokenizer: Tokenizer, index: dict[str, int] | None = None
    ) -> Iterator[EncodedExample]:
        """Encode words, with their heads by position and their relations as numbers."""
        kept = [record for record in records if isinstance(record, Tree | Tagged)]
        for record in kept:
            if len(record.words) > MAX_WORDS:
                raise PolyloomError(
                    f"dep: a sentence of {len(record.words):,} words ({' '.join(record.words[:5])[:60]} …). A parser "
                    f"scores all pairs of words: at most {MAX_WORDS:,} are allowed. Split it into sentences."
                )
        for record, row in zip(kept, encode_words([r.words for r in kept], tokenizer), strict=True):
            if index is None:
                yield row
            else:
                assert isinstance(record, Tree)
                labels = [index.setdefault(name, len(index)) for name in record.relations]
                yield row | {"heads": record.heads, "labels": labels}

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy of heads and of relations over words."""
        words_XWD, targets = self._words(states, rows), rows.targets
        total, _ = self.parser.loss(
            words_XWD, targets["mask_XW"], heads_XW=targets["heads_XW"], relations_XW=targets["labels_XW"]
        )
        return total

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Predict heads and relations of each sentence, as `Arcs`."""
        # Heads: the best tree with one root, which need not have the best head of every word (Chu-Liu-Edmonds).
        words_XWD, mask_XW = self._words(states, rows), rows.targets["mask_XW"]
        arcs_XWH = self.parser(words_XWD, mask_XW)
        heads_XW = mask_XW.long() * 0
        counts = mask_XW.sum(-1).tolist()
        for i, (arcs_WH, count) in enumerate(zip(arcs_XWH.double().cpu().numpy(), counts, strict=True)):
            scores = np.zeros((count + 1, count + 1))  # by dependent and head; row 0, the root, has no head
            scores[1:] = arcs_WH[:count, : count + 1]
            heads_XW[i, :count] = heads_XW.new_tensor(maximum_spanning_tree(scores).tolist())
        # Relations: the best one for each word, given its head in the tree.
        best_XW = self.parser.relations(words_XWD, mask_XW, heads_XW=heads_XW).argmax(-1).tolist()
        return [
            Arcs(heads[:count], [self.labels[i] for i in best[:count]])
            for heads, best, count in zip(heads_XW.tolist(), best_XW, counts, strict=True)
        ]

    def confidences(self, states: HeadInputs, rows: TaskBatch, predictions: Sequence[Any]) -> list[Any]:
        """Return the probability of each word's head, times that of its relation given the head."""
        words_XWD, mask_XW = self._words(states, rows), rows.targets["mask_XW"]
        heads = [{"heads": prediction.heads} for prediction in predictions]
        heads_XW = pad_targets(heads, "heads", mask_XW).clamp(min=0)  # padding is -1, which `gather` refuses
        heads_XW = heads_XW.to(mask_XW.device)
        arcs_XW = self.parser(words_XWD, mask_XW).softmax(-1).gather(-1, heads_XW[..., None])[..., 0]
        relations_XW = self.parser.relations(words_XWD, mask_XW, heads_XW=heads_XW).softmax(-1).amax(-1)
        return [
            both[: len(prediction.heads)]
            for both, prediction in zip((arcs_XW * relations_XW).tolist(), predictions, strict=True)
        ]

    @staticmethod
    def _words(states: HeadInputs, rows: TaskBatch) -> Tensor:
        if states.classify is not None:
            raise ConditionError("dep: psf generates linear classifiers, and a parser is none. Use another method.")
        return gather_words(states.hidden_BTD, rows).float()

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:
        """Count words with the right head, with the right head and relation, and all words."""
        return attachment_statistics(records, predictions)

    @classmethod
    def mistakes(cls, record: Any, prediction: Any) -> list[int]:
        """List the words whose head or relation is wrong as LAS counts it."""
        return wrong_words(record, prediction)

    @classmethod
    def prediction(cls, record: Any, decoded: Any, score: Any) -> ParsePrediction:
        """Return the tree over the words of a sentence."""
        heads, relations = map(tuple, decoded)
        return ParsePrediction(record.words, heads, relations, tuple(score or ()), record.offsets)
