"""Record which rows of banks changed, so that a checkpoint writes only those."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyloom.model import Model
from polyloom.nn.tables import Bank
from polyloom.tensor_files import StoredBank


@dataclass
class _Record:
    """The changes of a parameter since the last checkpoint."""

    tensor: Tensor
    """The same memory. It is held, so that no other tensor can get this address."""
    version: int
    """The version that torch counts for it, up to which all changes are in `rows`."""
    rows: Tensor
    """Which rows changed."""

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

    The optimizer records the rows that it updates. Anything else that writes to a parameter, or replaces its memory, is
    noticed by the version that torch counts: then all rows count as changed. Only writes to `Parameter.data` itself
    escape that count.
    """

    def __init__(self) -> None:
        self._records: dict[nn.Parameter, _Record] = {}

    @contextmanager
    def recording(self, parameter: nn.Parameter, rows: Tensor) -> Iterator[None]:
        """Record that a block of code changes some rows of a parameter, and nothing else of it."""
        record = self._records.get(parameter)
        # Checked before the block: what changed the parameter since the last record is not among the rows.
        current = record is not None and record.is_current(parameter)
        yield
        if record is not None and current:
            record.rows[rows] = True
            record.version = parameter._version  # noqa: SLF001

    def reset(self, model: Model) -> None:
        """Begin anew: a checkpoint has just been written."""
        self._records = {
            parameter: _Record(
                parameter.detach(),
                parameter._version,  # noqa: SLF001
                torch.zeros(len(parameter), dtype=torch.bool, device=parameter.device),
            )
            for bank in _banks(model).values()
            for parameter in bank.parameters()
        }

    def banks(self, model: Model) -> list[StoredBank]:
        """Return the banks of a model, and which of their rows changed."""
        stored = []
        for name, bank in _banks(model).items():
            names, changes = [], []
            for part, parameter in bank.named_parameters():
                names.append(f"{name}.{part}")
                record = self._records.get(parameter)
                if record is not None and record.is_current(parameter):
                    changes.append(record.rows)
                else:
                    changes.append(torch.ones(len(parameter), dtype=torch.bool, device=parameter.device))
            # A row is stored as a whole: it changed if any of its parameters did.
            stored.append(StoredBank(name, tuple(names), torch.stack(changes).any(0)))
        return stored


def _banks(model: Model) -> dict[str, Bank]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Bank)}
