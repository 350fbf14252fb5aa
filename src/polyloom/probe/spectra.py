"""Measure in how many directions a set of vectors varies."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NOISE = 1e-12  # eigenvalues in float64 below this share of the total are rounding


def effective_rank(eigenvalues: Array) -> float:
    """Compute the exponential of the entropy of singular values (Roy and Vetterli 2007): k for k equal ones."""
    singular = np.sqrt(np.clip(eigenvalues, 0.0, None))
    if not singular.any():
        return 0.0
    shares = singular[singular > 0] / singular.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def participation_ratio(eigenvalues: Array) -> float:
    """Compute ``(Σλ)² / Σλ²``: k for k equal variances, 0 if nothing varies."""
    clipped = np.clip(eigenvalues, 0.0, None)
    return float(clipped.sum() ** 2 / np.square(clipped).sum()) if clipped.any() else 0.0


def spectrum(symmetric: Array, *, total: float) -> Array:
    """Compute eigenvalues, largest first; those that are rounding relative to `total`, the uncentred squares, are 0."""
    values = np.linalg.eigvalsh(symmetric)[::-1]
    return np.where(values > NOISE * total, values, 0.0)
