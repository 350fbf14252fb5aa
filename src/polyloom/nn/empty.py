"""Build modules whose parameters have shapes, but neither memory nor values."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FILLS = {"normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "xavier_uniform_", "fill_", "zero_", "copy_"}


class _WithoutInit(TorchFunctionMode):
    """Skips what would fill a tensor of the device ``meta``, which takes most of the time of building a module."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the tensor that is to be filled, or what any other function returns."""
        if getattr(func, "__name__", "") in _FILLS and args and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def empty_modules() -> Iterator[None]:
    """Build modules on the device ``meta`` in this context; their parameters are not initialised."""
    with torch.device("meta"), _WithoutInit():
        yield
