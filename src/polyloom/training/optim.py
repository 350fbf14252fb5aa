"""Update weights: AdamW by groups of parameters, and row by row for banks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from polyloom.errors import ConfigError, suggest
from polyloom.model import Model
from polyloom.nn.tables import Bank
from polyloom.training.config import OptimConfig


class RowAdam(torch.optim.Optimizer):
    """Adam for banks: updates only rows that have a gradient, each with its own step count.

    The rows of a bank are the weights of different languages, tasks or pairs. With plain Adam a language that is absent
    from a batch would drift on old momentum, and training languages together would differ from training each alone.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every row that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        rows, gradient = _rows_of(_local(parameter.grad))
        if not len(rows):
            return
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros_like(parameter.flatten(1)[:, 0])
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        weight, step, mean, square = map(_local, (parameter, state["step"], state["exp_avg"], state["exp_avg_sq"]))
        beta1, beta2 = group["betas"]
        shape = (-1, *([1] * (weight.dim() - 1)))
        step[rows] += 1
        count = step[rows].view(shape)
        mean[rows] = mean[rows].lerp(gradient, 1 - beta1)
        square[rows] = square[rows].mul(beta2).addcmul(gradient, gradient, value=1 - beta2)
        scale = (square[rows] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        decayed = weight[rows] * (1 - group["lr"] * group["weight_decay"])
        weight[rows] = decayed - group["lr"] * (mean[rows] / (1 - beta1**count)) / scale


def _rows_of(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows whose gradient is not zero, and their gradients."""
    if gradient.is_sparse:
        rows, values = gradient.indices()[0], gradient.values()
        used = values.flatten(1).any(1)
        return (rows, values) if used.all() else (rows[used], values[used])
    rows = gradient.flatten(1).any(1).nonzero().squeeze(1)
    return rows, gradient[rows]


class Optimizer:
    """Combines the optimizers of a stage: AdamW, and `RowAdam` for banks.

    Args:
        model: The model, with the stage set: parameters that require a gradient are trained.
        config: Settings. A parameter has the learning rate of the smallest group of `groups` that it is in.

    Attributes:
        names: Names of all trained parameters.
    """

    def __init__(self, model: Model, config: OptimConfig) -> None:
        unknown = [name for name in config.groups if name not in model.groups()]
        if unknown:
            mistakes = [f"optim.groups.{name}: unknown group. {suggest(name, model.groups())}" for name in unknown]
            raise ConfigError("optim", mistakes)
        self.config = config
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        rates = dict.fromkeys(self.names, config.lr)
        for group in sorted(config.groups, key=lambda name: -len(model.group(name))):  # a part after its whole
            rates |= {p: config.groups[group] for p in model.group(group) if p in rates}
        banks = {p for module in model.modules() if isinstance(module, Bank) for p in module.parameters()}
        self._optimizers: list[torch.optim.Optimizer] = []
        split = ((torch.optim.AdamW, self.names.keys() - banks), (RowAdam, self.names.keys() & banks))
        for optimizer_class, members in split:
            groups = [
                {"params": [p for p in self.names if p in members and rates[p] == rate], "lr": rate, "peak": rate}
                for rate in sorted({rates[p] for p in members})
            ]
            if groups:
                settings = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
                self._optimizers.append(_build(optimizer_class, groups, settings))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters."""
        return list(self.names)

    def step(self, factor: float) -> None:
        """Update all weights at `factor` times the peak learning rates, and clear the gradients."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of the state by ``parameter/key``, to be saved in a checkpoint."""
        names: dict[Any, str] = dict(self.names)
        return {
            f"{names[p]}/{key}": value
            for optimizer in self._optimizers
            for p, state in optimizer.state.items()
            for key, value in state.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        by_name = {name: p for p, name in self.names.items()}
        owners = {p: o for o in self._optimizers for group in o.param_groups for p in group["params"]}
        for key, tensor in tensors.items():
            name, _, part = key.rpartition("/")
            owners[by_name[name]].state[by_name[name]][part] = tensor


def _build(optimizer_class: Any, groups: list[dict[str, Any]], settings: dict[str, Any]) -> torch.optim.Optimizer:
    if optimizer_class is RowAdam:
        return RowAdam(groups, settings)
    optimizer: torch.optim.Optimizer = optimizer_class(groups, fused=True, **settings)
    return optimizer


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
