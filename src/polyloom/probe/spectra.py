"""How many directions a set of vectors fills."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NOISE = 1e-12  # share of the total below which an eigenvalue in float64 is rounding


def effective_rank(eigenvalues: Array) -> float:
    """Exponential of the entropy of singular values (Roy and Vetterli 2007): k for k equal ones, 0 for none."""
    singular = np.sqrt(np.clip(eigenvalues, 0.0, None))
    if not singular.any():
        return 0.0
    shares = singular[singular > 0] / singular.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def participation_ratio(eigenvalues: Array) -> float:
    """``(Σλ)² / Σλ²``: how many equal variances would be as spread out; 0 where nothing varies."""
    clipped = np.clip(eigenvalues, 0.0, None)
    return float(clipped.sum() ** 2 / np.square(clipped).sum()) if clipped.any() else 0.0


def spectrum(symmetric: Array, *, total: float) -> Array:
    """Eigenvalues, largest first; what is rounding beside `total` (the squares before the mean was taken off) is 0."""
    values = np.linalg.eigvalsh(symmetric)[::-1]
    return np.where(values > NOISE * total, values, 0.0)
