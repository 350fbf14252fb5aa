"""How much of what a hypernetwork could express is used."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.methods.base import Method
from polyloom.model import Model
from polyloom.probe.chunks import CHUNK_BYTES, at_rest, chunks
from polyloom.probe.languages import language_vectors
from polyloom.probe.spectra import Array, effective_rank, participation_ratio, spectrum


def probe_capacity(model: Model, conditions: Sequence[Condition], *, max_bytes: int = CHUNK_BYTES) -> dict[str, Any]:
    """Measure how full a hypernetwork is.

    Args:
        model: One whose weights are generated.
        conditions: What it is asked to generate, at all sites.
        max_bytes: How much of what is generated may be held at a time.

    Returns:
        ``embeddings``: of languages, how many directions they spread over (participation ratio of the variances); and
        ``read``, what the heads read of all conditions and sites (effective rank); both with their width and spectrum,
        shares of the variance. ``layers``: their units, and how many are never active.
    """
    method = model.method
    last = _last(method)
    table_NE = np.array(list(language_vectors(model).values()))
    seen = _Seen()
    with at_rest(method):
        parts = chunks(method, conditions, max_bytes=max_bytes)  # which makes weights, to be heard by nobody
        with seen.listening(method, last):
            for part in parts:
                seen.begin()
                method.weights(conditions[part])
    centred_NE = table_NE - table_NE.mean(0)
    spread = spectrum(centred_NE.T @ centred_NE, total=float(np.square(table_NE).sum()))
    read_EE, total = seen.spread()
    read = spectrum(read_EE, total=total)
    return {
        "languages": len(table_NE),
        "conditions": len(conditions),
        "embeddings": {
            "width": len(spread),
            "participation_ratio": participation_ratio(spread),
            "spectrum": _shares(spread),
        },
        "read": {"width": len(read), "effective_rank": effective_rank(read), "spectrum": _shares(read)},
        "layers": [
            {"layer": number, "units": len(active), "dead": int((~active).sum())}
            for number, active in enumerate(seen.active, start=1)
        ],
    }


def capacity_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What was measured, for people: a part, how much of it is used, and of how much."""
    embeddings, read = found["embeddings"], found["read"]
    return [
        (
            "language embeddings (participation ratio)",
            f"{embeddings['participation_ratio']:.1f}",
            str(embeddings["width"]),
        ),
        ("what the heads read (effective rank)", f"{read['effective_rank']:.1f}", str(read["width"])),
        *(
            (f"active units of layer {layer['layer']}", str(layer["units"] - layer["dead"]), str(layer["units"]))
            for layer in found["layers"]
        ),
    ]


def _last(method: Method) -> nn.Module:
    """Return the last layer of the hypernetwork."""
    if (last := method.output_layer()) is not None:
        return last
    raise PolyloomError(
        f"method {method.config.name}: it generates nothing ({method.summary}), so there is no capacity to measure. "
        "polyloom probe weights compares what it stores."
    )


def _shares(values: Array) -> list[float]:
    return [float(value) for value in values / values.sum()] if values.any() else []


class _Seen:
    """What goes through a hypernetwork: which units were ever active, and the moments of what the heads read.

    Attributes:
        active: Of every hidden layer, in the order of computation.
    """

    def __init__(self) -> None:
        self.active: list[Tensor] = []
        self._call = 0
        self._count = 0
        self._sum: Tensor = torch.zeros(())
        self._squares: Tensor = torch.zeros(())

    def begin(self) -> None:
        """The next activation is that of the first layer; one module may serve several."""
        self._call = 0

    @contextmanager
    def listening(self, method: Method, last: nn.Module) -> Iterator[None]:
        """Listen while weights are made."""
        hooks = [m.register_forward_hook(self._activated) for m in method.modules() if isinstance(m, nn.ReLU)]
        hooks.append(last.register_forward_pre_hook(self._read))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _activated(self, _module: nn.Module, _inputs: Any, outputs: Tensor) -> None:
        active_E = (outputs > 0).flatten(0, -2).any(0).cpu()
        if self._call == len(self.active):
            self.active.append(active_E)
        else:
            self.active[self._call] |= active_E
        self._call += 1

    def _read(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows_NE = inputs[0].detach().flatten(0, -2).double().cpu()
        self._count += len(rows_NE)
        self._sum = self._sum + rows_NE.sum(0)
        self._squares = self._squares + rows_NE.T @ rows_NE

    def spread(self) -> tuple[Array, float]:
        """The covariance, times the number of rows; and the sum of squares before the mean was taken off."""
        centred_EE = self._squares - torch.outer(self._sum, self._sum) / self._count
        return centred_EE.numpy(), float(self._squares.trace())
