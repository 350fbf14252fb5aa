"""Settings of text generation, and logits processors that treat every row of a batch on its own."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from polyloom.errors import PolyloomError
from polyloom.ranges import Count, NotNegative

MAX_BEAMS = 100  # a batch is that many times as large


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Settings of beam search."""

    beams: Count = 5
    """Number of beams, at most 100; 1 is greedy search."""
    length_penalty: float = 1.0
    """Exponent of the length by which scores are divided."""
    max_ratio: NotNegative = 2.0
    """Maximum number of generated tokens per source token."""
    max_extra: Count = 20
    """Number of tokens allowed beyond that."""

    def __post_init__(self) -> None:
        if not 1 <= self.beams <= MAX_BEAMS:
            raise PolyloomError(f"beams: {self.beams} is not a number from 1 to {MAX_BEAMS}. Usual: 4 or 5.")

    def limits(self, mask_BT: Tensor) -> Tensor:
        """Return the maximum number of generated tokens of each row."""
        return (self.max_ratio * mask_BT.sum(-1)).long() + self.max_extra


class FiniteRows(LogitsProcessor):  # type: ignore[misc]
    """Notice rows whose scores are NaN.

    One logit is enough: a NaN in a hidden state spreads to the whole vocabulary.

    Attributes:
        rows_B: Whether the scores of each row were finite so far.
    """

    def __init__(self, rows_B: Tensor) -> None:
        self.rows_B = rows_B

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the interface of Transformers
        """Look at the first logit of every beam."""
        self.rows_B = self.rows_B & ~scores[:, 0].isnan().view(len(self.rows_B), -1).any(-1)
        return scores


class LengthLimit(LogitsProcessor):  # type: ignore[misc]
    """End every row at its own length limit, so that its output does not depend on the other rows."""

    def __init__(self, limits_B: Tensor, *, prefix: int, eos_id: int) -> None:
        self.limits_B, self.prefix, self.eos_id = limits_B, prefix, eos_id
        self.first = int(limits_B.min())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Allow only the end token in rows that have reached their limit."""
        length = input_ids.shape[1] - self.prefix
        if length < self.first - 1:  # most steps end here without touching the whole vocabulary
            return scores
        beams = len(input_ids) // len(self.limits_B)
        # The end token counts as generated, so it is forced as the last token within the limit.
        over = length >= self.limits_B.repeat_interleave(beams) - 1
        ended = torch.full_like(scores, -torch.inf)
        ended[:, self.eos_id] = 0.0
        return torch.where(over[:, None], ended, scores)


class ForcedPrefix(LogitsProcessor):  # type: ignore[misc]
    """Force the prefix of every row, such as its language token. It counts as generated."""

    def __init__(self, prefix_BP: Tensor) -> None:
        self.prefix_BP = prefix_BP

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Allow only the row's own prefix token at each prefix position."""
        position = input_ids.shape[1]
        if position >= self.prefix_BP.shape[1]:
            return scores
        token_B = self.prefix_BP[:, position].repeat_interleave(len(input_ids) // len(self.prefix_BP))
        return torch.full_like(scores, -torch.inf).scatter(1, token_B[:, None], 0.0)
