"""Measure how much of a hypernetwork's capacity is used."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.inference.cache import eval_mode
from polyloom.methods.base import Method
from polyloom.model import Model
from polyloom.probe.languages import language_vectors
from polyloom.probe.spectra import Array, effective_rank, participation_ratio, spectrum
from polyloom.probe.weights import CHUNK_BYTES, chunks


def probe_capacity(model: Model, conditions: Sequence[Condition], *, max_bytes: int = CHUNK_BYTES) -> dict[str, Any]:
    """Measure how much of a hypernetwork's capacity is used.

    Args:
        model: A model whose weights are generated.
        conditions: Conditions whose weights are generated, at all sites.
        max_bytes: Size of the generated weights that are in memory at a time.

    Returns:
        ``embeddings``: number of directions that the language embeddings spread over (participation ratio of the
        variances). ``read``: effective rank of the inputs of the output projections, over all conditions and sites.
        Both have their width and spectrum, as shares of the variance. ``layers``: number of units of each hidden layer,
        and how many of them are never active (``dead``).
    """
    method = model.method
    last = _output_layer(method)
    table_NE = np.array(list(language_vectors(model).values()))
    activations = _Activations()
    with eval_mode(method):
        slices = chunks(method, conditions, max_bytes=max_bytes)  # generates weights, which are not recorded
        with activations.recording(method, last):
            for part in slices:
                activations.start_pass()
                method.weights(conditions[part])
    centred_NE = table_NE - table_NE.mean(0)
    spread = spectrum(centred_NE.T @ centred_NE, total=float(np.square(table_NE).sum()))
    read_EE, total = activations.covariance()
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
            for number, active in enumerate(activations.active, start=1)
        ],
    }


def capacity_rows(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of a table: what was measured, how much of it is used, and of how much."""
    embeddings, read = result["embeddings"], result["read"]
    return [
        (
            "language embeddings (participation ratio)",
            f"{embeddings['participation_ratio']:.1f}",
            str(embeddings["width"]),
        ),
        ("inputs of the output projections (effective rank)", f"{read['effective_rank']:.1f}", str(read["width"])),
        *(
            (f"active units of layer {layer['layer']}", str(layer["units"] - layer["dead"]), str(layer["units"]))
            for layer in result["layers"]
        ),
    ]


def _output_layer(method: Method) -> nn.Module:
    """Return the layer of the hypernetwork that outputs weights."""
    if (layer := method.output_layer()) is not None:
        return layer
    raise PolyloomError(
        f"method {method.config.name}: has no hypernetwork ({method.summary}), so there is no capacity to measure. "
        "To compare its stored weights: polyloom probe weights"
    )


def _shares(values: Array) -> list[float]:
    return [float(value) for value in values / values.sum()] if values.any() else []


class _Activations:
    """Records which units of a hypernetwork are ever active, and the moments of the output layer's inputs.

    Attributes:
        active: Whether each unit was active, by hidden layer, in the order of computation.
    """

    def __init__(self) -> None:
        self.active: list[Tensor] = []
        self._call = 0
        self._count = 0
        self._sum: Tensor = torch.zeros(())
        self._squares: Tensor = torch.zeros(())

    def start_pass(self) -> None:
        """Start a forward pass: the next activation is that of the first layer. A module may be called repeatedly."""
        self._call = 0

    @contextmanager
    def recording(self, method: Method, last: nn.Module) -> Iterator[None]:
        """Record while weights are generated."""
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

    def covariance(self) -> tuple[Array, float]:
        """Return the covariance times the number of rows, and the uncentred sum of squares."""
        centred_EE = self._squares - torch.outer(self._sum, self._sum) / self._count
        return centred_EE.numpy(), float(self._squares.trace())
