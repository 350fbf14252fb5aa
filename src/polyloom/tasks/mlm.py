"""Masked language modelling on raw text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polyloom.data.records import Kind, Record, Text
from polyloom.data.shuffle import generator
from polyloom.data.tokenization.tokenizer import Tokenizer
from polyloom.errors import PolyloomError
from polyloom.metrics.score import PERPLEXITY, Array, Metric
from polyloom.ranges import Share
from polyloom.tasks.base import (
    Columns,
    EncodedExample,
    Example,
    Head,
    HeadInputs,
    Task,
    TaskBatch,
    TaskConfig,
    Tokens,
    vocabulary_losses,
)
from polyloom.tasks.padding import padded, tokens_to_predict


@dataclass(frozen=True, kw_only=True)
class MaskedLmConfig(TaskConfig):
    """Settings of masked language modelling."""

    mask_probability: Share = 0.15
    """Share of the tokens that are predicted. Of those, 80 % are replaced by the mask, 10 % by another token, 10 % stay
    (Devlin et al. 2019). A larger backbone can do with more."""


class MaskedLm(Task):
    """Masked language modelling with the backbone's head. The masks depend only on the key of an example."""

    Config: ClassVar[type[TaskConfig]] = MaskedLmConfig
    config: MaskedLmConfig
    name = "mlm"
    raw_text = True
    uses_lm_head = True
    addable = False
    export_head: ClassVar[Head | None] = "language-modelling"
    kind: ClassVar[Kind] = "text"
    columns: ClassVar[Columns] = {"tokens": "ints"}
    metrics: ClassVar[tuple[Metric, ...]] = (PERPLEXITY,)
    summary = "masked language modelling on raw text: perplexity"
    needs_labels = False

    def configure(self, config: TaskConfig, *, backbone: Any, pretrained: bool, tokenizer: Tokenizer) -> None:  # noqa: ARG002
        """Take the recipe's settings, which may differ from those of a run that is continued."""
        assert isinstance(config, MaskedLmConfig)
        self.config = config

    @classmethod
    def encode(
        cls,
        records: Sequence[Record],
        tokenizer: Tokenizer,
        index: dict[str, int] | None = None,  # noqa: ARG003 - no labels
    ) -> Iterator[EncodedExample]:
        """Encode text; a text without any token is one unknown token."""
        if tokenizer.mask_id is None:
            raise PolyloomError("mlm: the tokenizer has no mask token. Make a vocabulary with one: data vocab --mask.")
        for ids in tokenizer.text([record.text for record in records if isinstance(record, Text)]):
            yield {"tokens": ids or [tokenizer.unk_id], "length": max(len(ids), 1) + tokenizer.num_special(pair=False)}

    def collate(self, examples: Sequence[Example], *, tokenizer: Tokenizer, max_length: int) -> TaskBatch:
        """Lay out one row per text, cut at a random place where it is too long, with masks."""
        # Cut and mask each text. The key decides both, so a step sees the same masks whenever it is repeated.
        room = max_length - tokenizer.num_special(pair=False)
        sequences, masked = [], []
        for _, row, key in examples:
            random = generator((key,))
            ids = np.array(row["tokens"], dtype=np.int64)
            if len(ids) > room:
                start = int(random.integers(len(ids) - room + 1))
                ids = ids[start : start + room]
            places, targets = _mask(ids, tokenizer, random, share=self.config.mask_probability)
            sequences.append(Tokens(tokenizer.single(ids.tolist())))
            masked.append((places + tokenizer.num_before, targets))
        place_BM = padded([places for places, _ in masked], 0)
        labels_BM = padded([targets for _, targets in masked], -1)
        count = sum(len(places) for places, _ in masked)
        targets = {"labels_BM": labels_BM}
        # With `mlm_candidates: corpus`, masked tokens compete only with those of the corpora in the batch: the logits
        # are over these candidates (sorted), and a label is its position among them. Examples of one corpus share the
        # array of its candidates, so each array is taken once.
        candidates = {id(row["candidates"]): row["candidates"] for _, row, _ in examples if "candidates" in row}
        if candidates:
            candidates_V = torch.from_numpy(np.unique(np.concatenate(list(candidates.values()))).astype(np.int64))
            numbers_BM = torch.searchsorted(candidates_V, labels_BM.clamp(min=0))
            targets |= {"candidates_V": candidates_V, "labels_BM": torch.where(labels_BM < 0, labels_BM, numbers_BM)}
        # Columns of `labels_BM` count masked tokens; the head needs their places in the text.
        predicted = tokens_to_predict(targets["labels_BM"])
        targets |= predicted | {"place_N": place_BM[predicted["row_N"], predicted["place_N"]]}
        return TaskBatch(sequences, range(len(examples)), targets, count)

    def loss(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Sum the cross entropy over masked tokens."""
        return self._losses(states, rows).sum()

    def decode(self, states: HeadInputs, rows: TaskBatch) -> list[Any]:
        """Return for each text the sum of its losses and their number."""
        sums = self._losses(states, rows).sum(-1).double().tolist()
        counts = (rows.targets["labels_BM"] >= 0).sum(-1).tolist()
        return list(zip(sums, counts, strict=True))

    def _losses(self, states: HeadInputs, rows: TaskBatch) -> Tensor:
        """Return the loss of every masked token, ``[B, M]``; 0 where a text has fewer."""
        labels_BM, losses_N = rows.targets["labels_BM"], vocabulary_losses(states, rows)
        return torch.zeros(labels_BM.shape, device=losses_N.device).masked_scatter(labels_BM >= 0, losses_N)

    def statistics(self, records: Sequence[Any], predictions: Sequence[Any]) -> Array:  # noqa: ARG002 - texts are their own targets
        """Return the sum of losses and their number."""
        return np.array(predictions, dtype=np.float64).reshape(-1, 2)


def _mask(ids: Any, tokenizer: Tokenizer, random: np.random.Generator, *, share: float) -> tuple[Any, Any]:
    """Mask a share of `ids` in place, at least one; return the places and their tokens."""
    chosen = random.random(len(ids)) < share
    fallback = int(random.integers(len(ids)))  # always drawn, so that later draws do not depend on `chosen`
    (places,) = chosen.nonzero()
    if not len(places):
        places = np.array([fallback])
    targets = ids[places]
    # Of the chosen tokens 80 % become the mask, 10 % another token, 10 % stay (Devlin et al. 2019, section 3.1).
    fate = random.random(len(places))
    ids[places[fate < 0.8]] = tokenizer.mask_id
    replaced = places[(fate >= 0.8) & (fate < 0.9)]
    if len(replaced):
        ids[replaced] = random.integers(tokenizer.vocab_size, size=len(replaced))
    return places, targets
