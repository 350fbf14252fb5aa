"""Compare the weights of conditions: their similarity, and at which sites they differ.

Everything is computed from inner products between conditions, one matrix per site. So only a few conditions' weights
are in memory at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.inference.cache import eval_mode
from polyloom.methods.base import Method
from polyloom.probe.spectra import Array, effective_rank, spectrum
from polyloom.weights import Weights

CHUNK_BYTES = 256 << 20  # of weights in float64 that are in memory at a time
Progress = Callable[[int, int], None]


def probe_weights(
    method: Method,
    conditions: Sequence[Condition],
    *,
    max_bytes: int = CHUNK_BYTES,
    progress: Progress = lambda _done, _total: None,
) -> dict[str, Any]:
    """Compare the weights of conditions.

    Args:
        method: The method whose weights are compared.
        conditions: The conditions, at least two.
        max_bytes: Size of the weights that are in memory at a time; twice this size is used.
        progress: Called with the number of finished pairs of chunks, and of all pairs.

    Returns:
        ``conditions``; ``similarity``, the cosine similarity of their weights; and ``sites``. Every site has
        ``between_languages`` (of a task, averaged over tasks) and ``between_tasks`` (of a language, averaged over
        languages): the root mean square distance from the mean, relative to the length of the mean; and
        ``effective_rank``, the number of directions in which languages differ. A value is ``None`` if there are fewer
        than two languages, or tasks, to compare.
    """
    if len(conditions) < 2:
        raise PolyloomError(f"probe weights: {len(conditions)} condition; there is nothing to compare.")
    grams = inner_products(method, conditions, max_bytes=max_bytes, progress=progress)
    total_KK = sum(grams.values(), start=np.zeros((len(conditions), len(conditions))))
    length_K = np.sqrt(np.diag(total_KK))
    length_K = np.where(length_K > 0, length_K, 1.0)
    by_task = _groups(c.task for c in conditions)
    by_language = _groups("/".join(c.languages) for c in conditions)
    sites = []
    for site, gram_KK in grams.items():
        spread = [_spread(gram_KK[np.ix_(group, group)]) for group in by_task]
        across = [_spread(gram_KK[np.ix_(group, group)])[0] for group in by_language]
        between = {"between_languages": _mean(s for s, _ in spread), "between_tasks": _mean(across)}
        sites.append({"site": site, **between, "effective_rank": _mean(rank for _, rank in spread)})
    similarity_KK = np.clip(total_KK / np.outer(length_K, length_K), -1.0, 1.0)
    return {"conditions": list(map(str, conditions)), "similarity": similarity_KK.tolist(), "sites": sites}


def inner_products(
    method: Method,
    conditions: Sequence[Condition],
    *,
    max_bytes: int = CHUNK_BYTES,
    progress: Progress = lambda _done, _total: None,
) -> dict[str, Array]:
    """Compute inner products between the conditions' weights, by site ``[K, K]``."""
    grams: dict[str, Array] = {}
    count = len(conditions)
    with eval_mode(method):
        slices = chunks(method, conditions, max_bytes=max_bytes)
        pairs = [(i, j) for i in range(len(slices)) for j in range(i, len(slices))]
        for done, (i, j) in enumerate(pairs, start=1):
            if i == j:
                rows = _by_site(method.weights(conditions[slices[i]]))
            columns = rows if i == j else _by_site(method.weights(conditions[slices[j]]))
            for site, tensors in rows.items():
                gram_KK = grams.setdefault(site, np.zeros((count, count)))
                products = sum((a @ b.T for a, b in zip(tensors, columns[site], strict=True)), start=torch.zeros(()))
                gram_KK[slices[i], slices[j]] = products.cpu().numpy()
                gram_KK[slices[j], slices[i]] = products.T.cpu().numpy()
            progress(done, len(pairs))
    if not grams:
        raise PolyloomError(f"method {method.config.name}: has no adapter weights to compare ({method.summary}).")
    return grams


def chunks(method: Method, conditions: Sequence[Condition], *, max_bytes: int = CHUNK_BYTES) -> list[slice]:
    """Divide conditions into slices whose weights fit into a number of bytes; a slice has at least one condition."""
    size = 8 * method.weights(conditions[:1]).num_parameters()
    step = max(1, max_bytes // max(1, size))
    return [slice(start, start + step) for start in range(0, len(conditions), step)]


def _by_site(weights: Weights) -> dict[str, list[Tensor]]:
    """Collect the tensors of every site, flattened to ``[K, E]``."""
    by_site: dict[str, list[Tensor]] = {}
    for block in weights.blocks:
        for index, site in enumerate(block.sites):
            # These two kinds are not in a layer, though their blocks have the number of one.
            name = {"invertible": f"{site.stack}.embedding", "classifier": "head"}.get(block.kind, str(site))
            for tensor in block.tensors.values():
                flat_KE = tensor[:, index].flatten(1).double()
                # PSF sets labels that a task does not have to -inf, in all languages.
                by_site.setdefault(name, []).append(flat_KE.masked_fill(~flat_KE.isfinite(), 0.0))
    return by_site


def _groups(keys: Iterable[str]) -> list[list[int]]:
    """Group positions by key; groups of one position are left out."""
    by_key: dict[str, list[int]] = {}
    for position, key in enumerate(keys):
        by_key.setdefault(key, []).append(position)
    return [group for group in by_key.values() if len(group) > 1]


def _spread(gram_GG: Array) -> tuple[float | None, float]:
    """Compute the distance from the mean relative to the length of the mean, and the effective rank."""
    # All from inner products: the mean of G is the squared length of the mean vector, and G with its rows and columns
    # centred has the inner products of the distances from the mean, whose trace is the sum of their squares.
    mean = gram_GG.mean()
    centred_GG = gram_GG - gram_GG.mean(0) - gram_GG.mean(1, keepdims=True) + mean
    eigenvalues = spectrum(centred_GG, total=float(np.trace(gram_GG)))
    variance = eigenvalues.sum() / len(gram_GG)
    if not variance:
        return 0.0, 0.0
    return (float(np.sqrt(variance / mean)) if mean > 0 else None), effective_rank(eigenvalues)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
