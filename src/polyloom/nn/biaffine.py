"""The head of the deep biaffine parser: score arcs and relations from word vectors.

Dozat & Manning (2017), Deep Biaffine Attention for Neural Dependency Parsing. Deviation: the root is a trainable vector
beside the words, not a token of the encoder.

Shapes: S sentences, W words (of the longest sentence), H = W + 1 heads (0 is the root, i the i-th word), R relations,
D width of the words.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyloom.nn.hypernetwork import init_xavier

_IGNORE = -100


class Biaffine(nn.Module):
    """A biaffine scorer of arcs between words, and of the relations of given arcs.

    Values at padded positions (``mask_SW`` false), even nan, have no influence. The biaffine weights are initialised to
    zero: at first all heads and relations are equally likely. In the first step they alone have non-zero gradients.

    Args:
        input_size: Width of the words, D.
        num_relations: Number of relations, R.
        arc_size: Width in which arcs are scored.
        label_size: Width in which relations are scored.
        dropout: Dropout after each of the four projections.
    """

    def __init__(
        self, input_size: int, num_relations: int, *, arc_size: int = 500, label_size: int = 100, dropout: float = 0.33
    ) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(input_size))  # scaled as layer-normed words; at 0 its gradient is 0
        self.arc_dependent = _projection(input_size, arc_size, dropout=dropout)
        self.arc_head = _projection(input_size, arc_size, dropout=dropout)
        self.label_dependent = _projection(input_size, label_size, dropout=dropout)
        self.label_head = _projection(input_size, label_size, dropout=dropout)
        self.arc_weight = nn.Parameter(torch.zeros(arc_size + 1, arc_size))
        self.label_weight = nn.Parameter(torch.zeros(num_relations, label_size + 1, label_size + 1))

    def forward(self, words_SWD: Tensor, mask_SW: Tensor) -> Tensor:
        """Score every head of every word, ``[S, W, H]``; ``-inf`` for padded heads and for a word as its own head."""
        heads_SHD = self._with_root(words_SWD, mask_SW)
        dependent_SWE = _with_one(self.arc_dependent(heads_SHD[:, 1:]))
        scores_SWH = dependent_SWE @ self.arc_weight @ self.arc_head(heads_SHD).transpose(1, 2)
        itself_WH = torch.ones_like(scores_SWH[0], dtype=torch.bool).triu(1).tril(1)
        padded_SH = F.pad(~mask_SW, (1, 0), value=False)
        masked_SWH: Tensor = scores_SWH.masked_fill(itself_WH | padded_SH[:, None], -torch.inf)
        return masked_SWH

    def relations(self, words_SWD: Tensor, mask_SW: Tensor, *, heads_SW: Tensor) -> Tensor:
        """Score every relation of every word to the given head, ``[S, W, R]``."""
        all_SHD = self._with_root(words_SWD, mask_SW)
        chosen_SW1 = heads_SW.masked_fill(~mask_SW, 0)[..., None]
        head_SHE = _with_one(self.label_head(all_SHD))
        head_SWE = head_SHE.gather(1, chosen_SW1.expand(-1, -1, head_SHE.shape[-1]))
        dependent_SWE = _with_one(self.label_dependent(all_SHD[:, 1:]))
        return torch.einsum("swe,ref,swf->swr", dependent_SWE, self.label_weight, head_SWE)

    def loss(
        self, words_SWD: Tensor, mask_SW: Tensor, *, heads_SW: Tensor, relations_SW: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum the cross entropy of heads, and of relations at the gold heads, over words; also return their number.

        A relation of -1 is one that the parser does not have, and is left out.
        """
        arcs_SWH = self(words_SWD, mask_SW)
        labels_SWR = self.relations(words_SWD, mask_SW, heads_SW=heads_SW)
        total = _cross_entropy(arcs_SWH, heads_SW, mask_SW=mask_SW)
        total = total + _cross_entropy(labels_SWR, relations_SW, mask_SW=mask_SW & (relations_SW >= 0))
        return total, mask_SW.sum()

    def _with_root(self, words_SWD: Tensor, mask_SW: Tensor) -> Tensor:
        words_SWD = words_SWD.masked_fill(~mask_SW[..., None], 0.0)  # else 0 · nan would reach the gradients
        root_S1D = self.root.to(words_SWD.dtype).expand(len(words_SWD), 1, -1)
        return torch.cat([root_S1D, words_SWD], dim=1)


def _projection(size_in: int, size_out: int, *, dropout: float) -> nn.Sequential:
    linear = nn.Linear(size_in, size_out)
    init_xavier(linear)
    return nn.Sequential(linear, nn.LeakyReLU(0.1), nn.Dropout(dropout))


def _with_one(hidden: Tensor) -> Tensor:
    return F.pad(hidden, (0, 1), value=1.0)


def _cross_entropy(scores_SWE: Tensor, gold_SW: Tensor, *, mask_SW: Tensor) -> Tensor:
    gold_SW = gold_SW.masked_fill(~mask_SW, _IGNORE)
    return F.cross_entropy(scores_SWE.flatten(0, 1), gold_SW.flatten(), ignore_index=_IGNORE, reduction="sum")
