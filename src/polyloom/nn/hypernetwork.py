"""Parts of hypernetworks, which generate the weights of a site from vectors of the condition and the site."""

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
            {name: nn.Linear(size, int(torch.Size(spec.shape).numel()), bias=bias) for name, spec in tensors.items()}
        )

    def forward(self, hidden_KSE: Tensor) -> dict[str, Tensor]:
        """Generate all tensors for all conditions and sites in one product per tensor."""
        generated = {}
        hidden_KSE = hidden_KSE * self.scale  # the input is far smaller than the output: cheaper to scale
        for name, spec in self.tensors.items():
            linear = self.linears[name]
            assert isinstance(linear, nn.Linear)
            bias: Tensor | None = linear.bias  # Linear's annotation leaves None out
            flat = F.linear(hidden_KSE, linear.weight, None if bias is None else bias * self.scale)
            tensor = flat.view(*hidden_KSE.shape[:-1], *spec.shape)
            generated[name] = spec.mean + tensor if spec.mean else tensor
        return generated

    @torch.no_grad()
    def calibrate(self, probe_KSE: Tensor) -> None:
        """Rescale every projection so that the tensors generated for the probe have their kind's standard deviation.

        The scale actually used in `forward` is part of the measurement, so the target is met whether or not the output
        is rescaled, at every width.
        """
        generated = self(probe_KSE)
        for name, linear in self.linears.items():
            assert isinstance(linear, nn.Linear)
            linear.weight.mul_(self.tensors[name].std / generated[name].std())

    @torch.no_grad()
    def zero_init_up(self) -> None:
        """Initialise the projections so that generated blocks have no effect under any condition."""
        for name, linear in self.linears.items():
            spec = self.tensors[name]
            if spec.neutral is not None:
                assert isinstance(linear, nn.Linear)
                linear.weight.zero_()
                linear.bias.fill_((spec.neutral - spec.mean) / self.scale)


def init_xavier(linear: nn.Module) -> None:
    """Initialise a linear layer as Fairseq does: Xavier-uniform weights, zero bias."""
    assert isinstance(linear, nn.Linear)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)


class ResidualTrunk(nn.Module):
    """The trunk of Hyper-Adapters: ``relu(W_in x)``, then pre-norm residual blocks ``W2·relu(W1·LN(h)) + h``."""

    def __init__(self, size_in: int, size: int, *, num_blocks: int, dropout: float, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.input = nn.Linear(size_in, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(num_blocks))
        self.inner = nn.ModuleList(nn.Linear(size, size) for _ in range(num_blocks))
        self.outer = nn.ModuleList(nn.Linear(size, size) for _ in range(num_blocks))
        self.dropout = nn.Dropout(dropout)
        for module in (self.input, *self.inner, *self.outer):
            init_xavier(module)

    def forward(self, inputs_KSE: Tensor) -> Tensor:
        """Map condition vectors to the input of the output projections."""
        hidden_KSE: Tensor = self.dropout(self.activation(self.input(inputs_KSE)))
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            hidden_KSE = outer(self.dropout(self.activation(inner(norm(hidden_KSE))))) + hidden_KSE
        return hidden_KSE
