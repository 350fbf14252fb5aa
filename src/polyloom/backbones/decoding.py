"""How text is generated: settings, and a limit for every row that does not depend on the rows beside it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from polyloom.ranges import Count, NotNegative


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Settings of beam search.

    Attributes:
        beams: Hypotheses that are kept; 1 for greedy search.
        length_penalty: Power of the length that scores are divided by.
        max_ratio: A text ends after so many pieces for every one of its source ...
        max_extra: ... and so many more.
    """

    beams: Count = 5
    length_penalty: float = 1.0
    max_ratio: NotNegative = 2.0
    max_extra: Count = 20

    def limits(self, mask_BT: Tensor) -> Tensor:
        """Pieces that the text of each row may have."""
        return (self.max_ratio * mask_BT.sum(-1)).long() + self.max_extra


class LengthLimit(LogitsProcessor):  # type: ignore[misc]
    """Ends every row at its own limit: with one limit for all, a long neighbour would change what a row says."""

    def __init__(self, limits_B: Tensor, *, prefix: int, eos_id: int) -> None:
        self.limits_B, self.prefix, self.eos_id = limits_B, prefix, eos_id
        self.first = int(limits_B.min())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave only the end to rows that have reached their limit."""
        written = input_ids.shape[1] - self.prefix
        if written < self.first - 1:  # most steps: no need to touch the whole vocabulary
            return scores
        beams = len(input_ids) // len(self.limits_B)
        over = written >= self.limits_B.repeat_interleave(beams) - 1
        ended = torch.full_like(scores, -torch.inf)
        ended[:, self.eos_id] = 0.0
        return torch.where(over[:, None], ended, scores)


class ForcedPrefix(LogitsProcessor):  # type: ignore[misc]
    """Gives every row what it begins with, its language; counted as a piece, as by ``forced_bos_token_id``."""

    def __init__(self, prefix_BP: Tensor) -> None:
        self.prefix_BP = prefix_BP

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave only the row's own token, while it begins."""
        at = input_ids.shape[1]
        if at >= self.prefix_BP.shape[1]:
            return scores
        token_B = self.prefix_BP[:, at].repeat_interleave(len(input_ids) // len(self.prefix_BP))
        return torch.full_like(scores, -torch.inf).scatter(1, token_B[:, None], 0.0)
