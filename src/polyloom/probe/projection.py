"""Project language vectors on a plane: principal components, or UMAP (McInnes et al. 2018)."""

from importlib.util import find_spec
from typing import Literal

import numpy as np

from polyloom.errors import PolyloomError
from polyloom.probe.spectra import Array

Projection = Literal["pca", "umap"]
TIE = 1e-9
_FEWEST = 4  # languages; with fewer, UMAP has no neighbourhoods to keep
_NEIGHBOURS = 15  # UMAP's own default, as are all other settings


def require_projection(projection: Projection) -> None:
    """Raise an error unless the package that a projection needs is installed."""
    if projection == "umap" and find_spec("umap") is None:
        raise PolyloomError("projection umap: the package umap-learn is not installed. pip install 'polyloom[umap]'")


def project(vectors_NE: Array, projection: Projection) -> Array:
    """Project vectors on a plane ``[N, 2]``."""
    require_projection(projection)
    return {"pca": flat_map, "umap": umap_map}[projection](vectors_NE)


def flat_map(vectors_NE: Array) -> Array:
    """Project vectors on their first two principal components ``[N, 2]``.

    Signs are arbitrary, so the language farthest from the origin (the first of several) gets the positive side.
    """
    left, values, _ = np.linalg.svd(vectors_NE - vectors_NE.mean(0), full_matrices=False)
    scores_N2 = np.zeros((len(vectors_NE), 2))
    width = min(2, len(values))
    scores_N2[:, :width] = left[:, :width] * values[:width]
    # With a tolerance, so that languages that differ by rounding alone do not decide the sign.
    farthest = (np.abs(scores_N2) >= np.abs(scores_N2).max(0) - TIE).argmax(0)
    signed: Array = scores_N2 * np.where(scores_N2[farthest, [0, 1]] < 0, -1.0, 1.0)
    return signed


def umap_map(vectors_NE: Array, *, seed: int = 0) -> Array:
    """Project vectors by UMAP with the cosine distance ``[N, 2]``, from their principal components on.

    Neighbours stay neighbours; distances between groups and the axes mean nothing.
    """
    if len(vectors_NE) < _FEWEST:
        raise PolyloomError(f"projection umap: {len(vectors_NE)} languages; it needs {_FEWEST}. Choose pca.")
    start_N2 = flat_map(vectors_NE)
    if np.ptp(start_N2) <= TIE:  # all vectors are the same
        return start_N2
    from umap import UMAP  # noqa: PLC0415 - an extra, which takes seconds to import

    neighbours = min(_NEIGHBOURS, len(vectors_NE) - 1)
    reducer = UMAP(n_neighbors=neighbours, metric="cosine", init=start_N2, random_state=seed, n_jobs=1)
    places_N2: Array = reducer.fit_transform(vectors_NE).astype(np.float64)
    return places_N2
