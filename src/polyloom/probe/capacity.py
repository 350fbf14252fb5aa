"""Measure how much of a hypernetwork's capacity is used."""

from collections.abc import Mapping, Sequence
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
    last = method.output_layer()
    if last is None:
        raise PolyloomError(
            f"method {method.config.name}: has no hypernetwork ({method.summary}), so there is no capacity to measure. "
            "To compare its stored weights: polyloom probe weights"
        )
    table_NE = np.array(list(language_vectors(model).values()))
    centred_NE = table_NE - table_NE.mean(0)
    spread = spectrum(centred_NE.T @ centred_NE, total=float(np.square(table_NE).sum()))
    layers_active, covariance_EE, total = _record_activations(method, last, conditions, max_bytes=max_bytes)
    read = spectrum(covariance_EE, total=total)
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
            for number, active in enumerate(layers_active, start=1)
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


def _shares(values: Array) -> list[float]:
    return [float(value) for value in values / values.sum()] if values.any() else []


def _record_activations(
    method: Method, last: nn.Module, conditions: Sequence[Condition], *, max_bytes: int
) -> tuple[list[Tensor], Array, float]:
    """Generate the weights of conditions and record what the hypernetwork computes meanwhile.

    Returns:
        For each hidden layer, which units were ever active; of the inputs of the output layer, the covariance times the
        number of rows, and the sum of squares.
    """
    layers_active: list[Tensor] = []
    num_calls = num_rows = 0
    sum_E = squares_EE = torch.zeros(())

    def on_relu(_module: nn.Module, _inputs: Any, outputs: Tensor) -> None:
        # A ReLU may be one module that several layers call, so a layer is known by its number in the forward pass.
        nonlocal num_calls
        active_E = (outputs > 0).flatten(0, -2).any(0).cpu()
        if num_calls == len(layers_active):
            layers_active.append(active_E)
        else:
            layers_active[num_calls] |= active_E
        num_calls += 1

    def on_output(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # The inputs of all conditions and sites would fill the memory; their sums are all that the covariance needs.
        nonlocal num_rows, sum_E, squares_EE
        rows_NE = inputs[0].detach().flatten(0, -2).double().cpu()
        num_rows += len(rows_NE)
        sum_E = sum_E + rows_NE.sum(0)
        squares_EE = squares_EE + rows_NE.T @ rows_NE

    with eval_mode(method):
        slices = chunks(method, conditions, max_bytes=max_bytes)  # before the hooks, as it generates weights too
        hooks = [module.register_forward_hook(on_relu) for module in method.modules() if isinstance(module, nn.ReLU)]
        hooks.append(last.register_forward_pre_hook(on_output))
        try:
            for part in slices:
                num_calls = 0
                method.weights(conditions[part])
        finally:
            for hook in hooks:
                hook.remove()

    centred_EE = squares_EE - torch.outer(sum_E, sum_E) / num_rows  # Σxxᵀ − (Σx)(Σx)ᵀ/n
    return layers_active, centred_EE.numpy(), float(squares_EE.trace())
