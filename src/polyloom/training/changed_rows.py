"""Note which rows of banks changed, so that a checkpoint writes only those."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyloom.model import Model
from polyloom.nn.tables import Bank
from polyloom.tensor_files import StoredBank


@dataclass
class _Noted:
    """What is known of a parameter since the last checkpoint.

    Attributes:
        tensor: The same memory. It is held, so that no other tensor can be there.
        version: The version that torch counts for it, up to which all changes are in `rows`.
        rows: Which rows changed.
    """

    tensor: Tensor
    version: int
    rows: Tensor

    def is_current(self, parameter: Tensor) -> bool:
        """Return whether all changes of the parameter are in `rows`."""
        same = (
            parameter.data_ptr() == self.tensor.data_ptr()
            and parameter.device == self.tensor.device
            and parameter.dtype == self.tensor.dtype
            and parameter.shape == self.tensor.shape
        )
        return same and parameter._version == self.version  # noqa: SLF001 - torch has no public name for it


class ChangedRows:
    """Knows which rows of a model's banks changed since the last checkpoint.

    The optimizer notes the rows that it updates. Anything else that writes to a parameter, or replaces its memory, is
    noticed by the version that torch counts: then all rows count as changed. Only writes to `Parameter.data` itself
    escape that count.
    """

    def __init__(self) -> None:
        self._noted: dict[nn.Parameter, _Noted] = {}

    @contextmanager
    def noting(self, parameter: nn.Parameter, rows: Tensor) -> Iterator[None]:
        """Note that a block of code changes some rows of a parameter, and nothing else of it."""
        noted = self._noted.get(parameter)
        current = noted is not None and noted.is_current(parameter)
        yield
        if noted is not None and current:
            noted.rows[rows] = True
            noted.version = parameter._version  # noqa: SLF001

    def reset(self, model: Model) -> None:
        """Begin anew: a checkpoint has just been written."""
        self._noted = {
            parameter: _Noted(
                parameter.detach(),
                parameter._version,  # noqa: SLF001
                torch.zeros(len(parameter), dtype=torch.bool, device=parameter.device),
            )
            for bank in _banks(model).values()
            for parameter in bank.parameters()
        }

    def banks(self, model: Model) -> list[StoredBank]:
        """Return the banks of a model, and which of their rows changed."""
        return [
            StoredBank(
                name,
                tuple(f"{name}.{part}" for part, _ in bank.named_parameters()),
                torch.stack([self._changed(parameter) for parameter in bank.parameters()]).any(0),
            )
            for name, bank in _banks(model).items()
        ]

    def _changed(self, parameter: nn.Parameter) -> Tensor:
        noted = self._noted.get(parameter)
        if noted is not None and noted.is_current(parameter):
            return noted.rows
        return torch.ones(len(parameter), dtype=torch.bool, device=parameter.device)


def _banks(model: Model) -> dict[str, Bank]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Bank)}
