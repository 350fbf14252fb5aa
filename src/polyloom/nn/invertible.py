"""The invertible adapter of MAD-X (NICE coupling): exact inverse, per row."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polyloom.errors import BackboneError
from polyloom.nn.linear import linear
from polyloom.weights import Shapes


def invertible_shapes(width: int) -> Shapes:
    """Shapes of the two subnetworks F and G, each ``D/2 → D/4 → D/2``."""
    if width % 4:
        raise BackboneError(f"invertible adapter: width {width} is not a multiple of 4. Use `invertible: false`.")
    half, quarter = width // 2, width // 4
    shapes: dict[str, tuple[int, ...]] = {}
    for net in ("f", "g"):
        shapes |= {
            f"{net}_in": (quarter, half),
            f"{net}_in_bias": (quarter,),
            f"{net}_out": (half, quarter),
            f"{net}_out_bias": (half,),
        }
    return shapes


def couple(hidden_BTD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """``o1 = F(e2) + e1; o2 = G(o1) + e2``."""
    first_BTE, second_BTE = hidden_BTD.chunk(2, dim=-1)
    first_BTE = _subnet(second_BTE, weights, net="f") + first_BTE
    second_BTE = _subnet(first_BTE, weights, net="g") + second_BTE
    return torch.cat([first_BTE, second_BTE], dim=-1)


def uncouple(hidden_BTD: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The inverse of `couple`."""
    first_BTE, second_BTE = hidden_BTD.chunk(2, dim=-1)
    second_BTE = second_BTE - _subnet(first_BTE, weights, net="g")
    first_BTE = first_BTE - _subnet(second_BTE, weights, net="f")
    return torch.cat([first_BTE, second_BTE], dim=-1)


def _subnet(hidden_BTE: Tensor, weights: Mapping[str, Tensor], *, net: str) -> Tensor:
    inner = torch.relu(linear(hidden_BTE, weights[f"{net}_in"], weights[f"{net}_in_bias"]))
    return linear(inner, weights[f"{net}_out"], weights[f"{net}_out_bias"])
