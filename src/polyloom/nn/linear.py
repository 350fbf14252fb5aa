"""A linear map and a layer norm with weights for all rows, or with different weights for each row."""

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(hidden_BTD: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map: ``weight [E, D]`` for all rows, or ``weight [B, E, D]`` with one matrix per row."""
    if weight.dim() == 2:
        return F.linear(hidden_BTD, weight, bias)
    if bias is None:
        return torch.bmm(hidden_BTD, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), hidden_BTD, weight.transpose(1, 2))


def layer_norm(hidden_BTD: Tensor, weight: Tensor, bias: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Normalise the last dimension; gain and bias ``[D]`` shared or ``[B, D]`` one per row."""
    if weight.dim() == 1:
        return F.layer_norm(hidden_BTD, weight.shape, weight, bias, eps)
    normed_BTD = F.layer_norm(hidden_BTD, weight.shape[-1:], eps=eps)
    return torch.addcmul(bias.unsqueeze(1), normed_BTD, weight.unsqueeze(1))
