"""The head of the deep biaffine parser: score arcs and relations from word vectors.

Dozat & Manning (2017), Deep Biaffine Attention for Neural Dependency Parsing. Deviation: the root is a trainable vector
beside the words, not a token of the encoder.

Shapes: X sentences, W words (of the longest sentence), H = W + 1 heads (0 is the root, i the i-th word), R relations,
D width of the words.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyloom.nn.hypernetwork import init_xavier

_IGNORE = -100


class Biaffine(nn.Module):
    """A biaffine scorer of arcs between words, and of the relations of given arcs.

    Values at padded positions (``mask_XW`` false), even nan, have no influence. The biaffine weights are initialised to
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

    def forward(self, words_XWD: Tensor, mask_XW: Tensor) -> Tensor:
        """Score every head of every word, ``[X, W, H]``; ``-inf`` for padded heads and for a word as its own head."""
        # Equation 6 of the paper: h_dep' U h_head + u' h_head. The 1 behind h_dep makes both terms one product.
        heads_XHD = self._with_root(words_XWD, mask_XW)
        dependent_XWE = _with_one(self.arc_dependent(heads_XHD[:, 1:]))
        scores_XWH = dependent_XWE @ self.arc_weight @ self.arc_head(heads_XHD).transpose(1, 2)
        itself_WH = torch.ones_like(scores_XWH[0], dtype=torch.bool).triu(1).tril(1)  # word i is head i + 1
        padded_SH = F.pad(~mask_XW, (1, 0), value=False)
        masked_XWH: Tensor = scores_XWH.masked_fill(itself_WH | padded_SH[:, None], -torch.inf)
        return masked_XWH

    def relations(self, words_XWD: Tensor, mask_XW: Tensor, *, heads_XW: Tensor) -> Tensor:
        """Score every relation of every word to the given head, ``[X, W, R]``."""
        # Equation 3, for each relation: the 1 behind both sides adds two linear terms and a bias to the bilinear one.
        all_XHD = self._with_root(words_XWD, mask_XW)
        chosen_XW1 = heads_XW.masked_fill(~mask_XW, 0)[..., None]
        head_XHE = _with_one(self.label_head(all_XHD))
        head_XWE = head_XHE.gather(1, chosen_XW1.expand(-1, -1, head_XHE.shape[-1]))
        dependent_XWE = _with_one(self.label_dependent(all_XHD[:, 1:]))
        return torch.einsum("xwe,ref,xwf->xwr", dependent_XWE, self.label_weight, head_XWE)

    def loss(
        self, words_XWD: Tensor, mask_XW: Tensor, *, heads_XW: Tensor, relations_XW: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum the cross entropy of heads, and of relations at the gold heads, over words; also return their number.

        A relation of -1 is one that the parser does not have, and is left out.
        """
        arcs_XWH = self(words_XWD, mask_XW)
        labels_XWR = self.relations(words_XWD, mask_XW, heads_XW=heads_XW)
        total = _cross_entropy(arcs_XWH, heads_XW, mask_XW=mask_XW)
        total = total + _cross_entropy(labels_XWR, relations_XW, mask_XW=mask_XW & (relations_XW >= 0))
        return total, mask_XW.sum()

    def _with_root(self, words_XWD: Tensor, mask_XW: Tensor) -> Tensor:
        words_XWD = words_XWD.masked_fill(~mask_XW[..., None], 0.0)  # else 0 · nan would reach the gradients
        root_X1D = self.root.to(words_XWD.dtype).expand(len(words_XWD), 1, -1)
        return torch.cat([root_X1D, words_XWD], dim=1)


def _projection(size_in: int, size_out: int, *, dropout: float) -> nn.Sequential:
    linear = nn.Linear(size_in, size_out)
    init_xavier(linear)
    return nn.Sequential(linear, nn.LeakyReLU(0.1), nn.Dropout(dropout))


def _with_one(hidden: Tensor) -> Tensor:
    return F.pad(hidden, (0, 1), value=1.0)


def _cross_entropy(scores_XWE: Tensor, gold_XW: Tensor, *, mask_XW: Tensor) -> Tensor:
    gold_XW = gold_XW.masked_fill(~mask_XW, _IGNORE)
    return F.cross_entropy(scores_XWE.flatten(0, 1), gold_XW.flatten(), ignore_index=_IGNORE, reduction="sum")
