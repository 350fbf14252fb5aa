"""Hypernetworks: modules that generate the weights of a site from vectors of the condition and of the site."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyloom.nn.blocks import TensorSpecs


class OutputProjections(nn.Module):
    """The last layer of a hypernetwork: one linear projection per generated tensor.

    Args:
        size: Width of the hypernetwork, d_h.
        tensors: Descriptions of the tensors to generate, by name.
        rescale: Whether to divide the generated tensors by √d_h.
        bias: Whether the projections have biases. Default: true.
    """

    def __init__(self, size: int, *, tensors: TensorSpecs, rescale: bool, bias: bool = True) -> None:
        super().__init__()
        self.tensors = dict(tensors)
        self.scale = size**-0.5 if rescale else 1.0
        self.linears = nn.ModuleDict(
            {name: nn.Linear(size, math.prod(spec.shape), bias=bias) for name, spec in tensors.items()}
        )

    def named_linears(self) -> list[tuple[str, nn.Linear]]:
        """List the projections with the names of their tensors."""
        linears = []
        for name, linear in self.linears.items():
            assert isinstance(linear, nn.Linear)  # which the type of a ModuleDict does not say
            linears.append((name, linear))
        return linears

    def forward(self, hidden_KSE: Tensor) -> dict[str, Tensor]:
        """Generate all tensors for all conditions and sites, ``{name: [K, S, ...]}``, in one product per tensor."""
        # (W·h + b) / √d_h is computed as W·(h / √d_h) + b / √d_h: h is far smaller than what is generated.
        hidden_KSE = hidden_KSE * self.scale
        generated = {}
        for name, linear in self.named_linears():
            bias: Tensor | None = linear.bias  # torch's annotation leaves None out
            flat_KSE = F.linear(hidden_KSE, linear.weight, None if bias is None else bias * self.scale)
            spec = self.tensors[name]
            tensor = flat_KSE.view(*hidden_KSE.shape[:-1], *spec.shape)
            # A gain of a layer norm is generated around 1 (Hyper-Adapters: "γ is incremented by one").
            generated[name] = spec.mean + tensor if spec.mean else tensor
        return generated

    @torch.no_grad()
    def calibrate(self, probe_KSE: Tensor) -> None:
        """Scale every projection so that the tensors generated for the probe have their kind's standard deviation.

        What is measured is the output of `forward`, with its factor 1/√d_h. So the target is met at every width, with
        and without that factor.
        """
        generated = self(probe_KSE)
        for name, linear in self.named_linears():
            linear.weight.mul_(self.tensors[name].std / generated[name].std())

    @torch.no_grad()
    def zero_init_up(self) -> None:
        """Initialise the projections so that generated blocks have no effect under any condition."""
        for name, linear in self.named_linears():
            spec = self.tensors[name]
            if spec.neutral is not None:
                # With zero weights the bias alone decides: mean + bias / √d_h is the neutral value.
                linear.weight.zero_()
                linear.bias.fill_((spec.neutral - spec.mean) / self.scale)


class Hypernetwork(nn.Module):
    """A hypernetwork: a trunk, which reads the vectors of condition and site, and the output projections.

    Args:
        trunk: Maps the vectors ``[K, S, E]`` to the input of the projections.
        projections: The last layer.
    """

    def __init__(self, trunk: nn.Module, projections: OutputProjections) -> None:
        super().__init__()
        self.trunk = trunk
        self.projections = projections

    def forward(self, vectors_KSE: Tensor) -> dict[str, Tensor]:
        """Generate all tensors for all conditions and sites, ``{name: [K, S, ...]}``."""
        generated: dict[str, Tensor] = self.projections(self.trunk(vectors_KSE))
        return generated


def init_xavier(linear: nn.Linear) -> None:
    """Initialise a linear layer as Fairseq does: Xavier-uniform weights, zero bias."""
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)


class ResidualTrunk(nn.Module):
    """The trunk of Hyper-Adapters (§3): ``h = φ(W_in x)``, then pre-norm residual blocks ``W2·φ(W1·LN(h)) + h``."""

    def __init__(self, size_in: int, size: int, *, num_blocks: int, dropout: float, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.input = nn.Linear(size_in, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(num_blocks))
        self.inner = nn.ModuleList(nn.Linear(size, size) for _ in range(num_blocks))
        self.outer = nn.ModuleList(nn.Linear(size, size) for _ in range(num_blocks))
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_xavier(module)

    def forward(self, vectors_KSE: Tensor) -> Tensor:
        """Compute the input of the output projections, ``[K, S, d_h]``."""
        hidden_KSE: Tensor = self.dropout(self.activation(self.input(vectors_KSE)))
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            hidden_KSE = outer(self.dropout(self.activation(inner(norm(hidden_KSE))))) + hidden_KSE
        return hidden_KSE
