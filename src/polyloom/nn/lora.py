"""LoRA: a low-rank addition to a projection, in PEFT's form with ``lora_alpha = r``."""

from collections.abc import Mapping

from torch import Tensor

from polyloom.nn.linear import linear
from polyloom.weights import Shapes


def lora_shapes(projections: Mapping[str, tuple[int, int]], rank: int) -> Shapes:
    """Shapes of the tensors of all adapted projections of a layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (size_in, size_out) in projections.items():
        shapes |= {f"{name}_down": (rank, size_in), f"{name}_up": (size_out, rank)}
    return shapes


def lora(input_BTD: Tensor, weights: Mapping[str, Tensor], *, projection: str) -> Tensor:
    """What LoRA adds to the output of a projection with this input."""
    return linear(linear(input_BTD, weights[f"{projection}_down"]), weights[f"{projection}_up"])
