"""Update weights: AdamW by groups of parameters, and row by row for banks."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from polyloom.errors import ConfigError, suggest
from polyloom.model import Model
from polyloom.nn.tables import Bank
from polyloom.training.changed_rows import ChangedRows
from polyloom.training.config import OptimConfig
from polyloom.training.distributed import full_tensor, shard_like


class RowAdam(torch.optim.Optimizer):
    """AdamW for banks: updates only rows that have a gradient, each with its own step count.

    The rows of a bank are the weights of different languages, tasks or pairs. With plain Adam a language that is absent
    from a batch would drift on old momentum, and its bias correction would count steps in which it had no gradient:
    training languages together would differ from training each alone. With a gradient in every row it is AdamW.

    The state has the rows that were ever updated (``rows``), in the order of their first update. So it costs the rows
    that have data, not those of the bank.

    Args:
        params: Parameters, or groups of them.
        defaults: Settings of groups.
        changed_rows: Where it notes the rows that it updates.
    """

    def __init__(self, params: Any, defaults: dict[str, Any], changed_rows: ChangedRows | None = None) -> None:
        super().__init__(params, defaults)
        self._changed_rows = changed_rows or ChangedRows()
        self._state_rows: dict[nn.Parameter, Tensor] = {}  # for each row of a bank its row of the state; -1 if none
        self._buffers: dict[tuple[nn.Parameter, str], Tensor] = {}  # larger tensors, whose first rows are the state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every row that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        # Rows whose gradient is zero are left alone, too: a method may gather the row of a task that is not trained.
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            rows, gradient = parameter.grad.indices()[0], parameter.grad.values()
            used = gradient.flatten(1).any(1)
            if not used.all():
                rows, gradient = rows[used], gradient[used]
        else:
            rows = parameter.grad.flatten(1).any(1).nonzero().squeeze(1)
            gradient = parameter.grad[rows]

        # AdamW (Loshchilov and Hutter 2019), where t is the number of updates of each row:
        #   m ← β₁m + (1-β₁)g,  v ← β₂v + (1-β₂)g²,  θ ← θ - lr·λ·θ - lr · (m / (1-β₁ᵗ)) / (√(v / (1-β₂ᵗ)) + ε)
        state_rows, state = self._rows_of_state(parameter, rows), self.state[parameter]
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = group["betas"]
        step[state_rows] += 1
        count = step[state_rows].view(-1, *([1] * (parameter.dim() - 1)))
        mean[state_rows] = mean[state_rows].lerp(gradient, 1 - beta1)
        square[state_rows] = square[state_rows].mul(beta2).addcmul(gradient, gradient, value=1 - beta2)
        scale = (square[state_rows] / (1 - beta2**count)).sqrt_().add_(group["eps"])
        decayed = parameter[rows] * (1 - group["lr"] * group["weight_decay"])
        with self._changed_rows.recording(parameter, rows):
            parameter[rows] = decayed - group["lr"] * (mean[state_rows] / (1 - beta1**count)) / scale

    def _rows_of_state(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        """Return which rows of the state belong to rows of a bank. Those without state get one of zeros."""
        state = self.state[parameter]
        if not state:
            state["step"], state["rows"] = parameter.new_zeros(0), rows[:0]
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(parameter[:0]) for _ in range(2))
        if parameter not in self._state_rows:  # the first update, or the first one after `restore`
            self._state_rows[parameter] = rows.new_full((len(parameter),), -1)
            self._state_rows[parameter][state["rows"]] = torch.arange(len(state["rows"]), device=rows.device)
        state_rows = self._state_rows[parameter]
        new = rows[state_rows[rows] < 0]
        if len(new):
            first, count = len(state["rows"]), len(state["rows"]) + len(new)
            for key in ("step", "exp_avg", "exp_avg_sq", "rows"):
                # A buffer doubles when it is full, so that rows which come one after another do not copy it each time.
                buffer = self._buffers.get((parameter, key))
                if buffer is None or len(buffer) < count:
                    buffer = state[key].new_zeros(min(len(parameter), max(8, count, 2 * first)), *state[key].shape[1:])
                    buffer[:first] = state[key]
                    self._buffers[parameter, key] = buffer
                state[key] = buffer[:count]
            state["rows"][first:] = new
            state_rows[new] = torch.arange(first, count, device=rows.device)
        return state_rows[rows]

    def restore(self, parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
        """Restore a saved state."""
        self._state_rows.clear()
        self._buffers.clear()
        self.state[parameter] = {key: value.to(parameter.device) for key, value in state.items()}


class Optimizer:
    """Combines the optimizers of a stage: AdamW, and `RowAdam` for banks.

    Args:
        model: The model, with the stage set: parameters that require a gradient are trained.
        config: Settings. A parameter has the learning rate of the smallest group of `groups` that it is in.
        changed_rows: Where the rows of banks that are updated are noted.

    Attributes:
        names: Names of all trained parameters.
    """

    def __init__(self, model: Model, config: OptimConfig, changed_rows: ChangedRows | None = None) -> None:
        unknown = [name for name in config.groups if name not in model.groups()]
        if unknown:
            mistakes = [f"optim.groups.{name}: unknown group. {suggest(name, model.groups())}" for name in unknown]
            raise ConfigError("optim", mistakes)
        self.config = config
        # A parameter of a part, such as `backbone.norms`, has the rate of the part, not of the whole: smaller groups
        # come later and overwrite.
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        rates = dict.fromkeys(self.names, config.lr)
        for group in sorted(config.groups, key=lambda name: -len(model.group(name))):
            rates |= {p: config.groups[group] for p in model.group(group) if p in rates}

        # One optimizer for banks and one for all else, each with a parameter group for every learning rate.
        banks = {p for module in model.modules() if isinstance(module, Bank) for p in module.parameters()}
        self._optimizers: list[torch.optim.Optimizer] = []
        settings: dict[str, Any] = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
        for by_row, members in ((False, self.names.keys() - banks), (True, self.names.keys() & banks)):
            groups = [
                {"params": [p for p in self.names if p in members and rates[p] == rate], "lr": rate, "peak": rate}
                for rate in sorted({rates[p] for p in members})
            ]
            if groups and by_row:
                self._optimizers.append(RowAdam(groups, settings, changed_rows))
            elif groups:
                self._optimizers.append(torch.optim.AdamW(groups, fused=True, **settings))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters."""
        return list(self.names)

    def clip_gradient(self) -> Tensor:
        """Clip the gradient of all parameters together, in place. Return its norm before, which stays on the device."""
        # Torch cannot clip sparse gradients, and not norms of shards and of whole tensors at once. So the values of a
        # sparse gradient take part as the gradient of a dense tensor, and the two kinds get their norms apart.
        whole, sharded = list[Tensor](), list[Tensor]()
        for parameter in self.names:
            if parameter.grad is None:
                continue
            tensor: Tensor = parameter
            if parameter.grad.is_sparse:
                values = parameter.grad.values()
                tensor = values.detach()
                tensor.grad = values
            kind = sharded if isinstance(tensor, DTensor) else whole
            kind.append(tensor)
        kinds = [kind for kind in (whole, sharded) if kind]
        norms = [full_tensor(nn.utils.get_total_norm([t.grad for t in kind if t.grad is not None])) for kind in kinds]
        if not norms:
            return torch.zeros((), device=next(iter(self.names)).device)
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        for kind in kinds:
            nn.utils.clip_grads_with_norm_(kind, self.config.max_grad_norm or math.inf, norm)
        return norm

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
        states: dict[nn.Parameter, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, part = key.rpartition("/")
            states.setdefault(by_name[name], {})[part] = tensor
        for parameter, state in states.items():
            owner = owners[parameter]
            if isinstance(owner, RowAdam):
                owner.restore(parameter, state)
            else:  # AdamW, whose step count is a scalar and has no shards
                owner.state[parameter] = {
                    key: tensor if tensor.dim() == 0 else shard_like(tensor, parameter) for key, tensor in state.items()
                }
