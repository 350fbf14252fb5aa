"""The bottleneck adapter, without its residual: ``U·relu(D·LN(z))``."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polyloom.nn.linear import layer_norm, linear
from polyloom.weights import Shapes


def bottleneck_shapes(width: int, size: int, *, norm: bool) -> Shapes:
    """Shapes of one bottleneck's tensors; ``norm`` adds a layer norm of its own before the down projection."""
    shapes: dict[str, tuple[int, ...]] = {
        "down": (size, width),
        "down_bias": (size,),
        "up": (width, size),
        "up_bias": (width,),
    }
    return shapes | {"norm_weight": (width,), "norm_bias": (width,)} if norm else shapes


def bottleneck(hidden_BTD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """What the adapter adds to its input."""
    if "norm_weight" in weights:
        hidden_BTD = layer_norm(hidden_BTD, weights["norm_weight"], weights["norm_bias"])
    inner_BTE = torch.relu(linear(hidden_BTD, weights["down"], weights["down_bias"]))
    return linear(inner_BTE, weights["up"], weights["up_bias"])
