"""How alike the weights of conditions are, and where in the network they differ.

All of it follows from inner products between conditions, one table per site. So memory holds a few conditions' weights
at a time, however many there are.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.methods.base import Method
from polyloom.probe.chunks import CHUNK_BYTES, at_rest, chunks
from polyloom.probe.spectra import Array, effective_rank, spectrum
from polyloom.weights import Site, Weights

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
        method: What makes them.
        conditions: Which ones.
        max_bytes: How much of them may be held at a time, twice.
        progress: Hears how many tables of how many are done.

    Returns:
        ``conditions``; ``similarity``, the cosine between all their weights; and for every site in ``sites``
        ``between_languages`` (of a task, the mean over tasks) and ``between_tasks`` (of a language), which are
        root mean square distance from the mean over the length of the mean, and ``effective_rank``, in how many
        directions languages differ. ``None`` where there are not two languages, or tasks, to compare.
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
    """Inner products between the conditions' weights, by site ``[K, K]``."""
    found: dict[str, Array] = {}
    count = len(conditions)
    with at_rest(method):
        parts = chunks(method, conditions, max_bytes=max_bytes)
        pairs = [(i, j) for i in range(len(parts)) for j in range(i, len(parts))]
        for done, (i, j) in enumerate(pairs, start=1):
            if i == j:
                rows = _by_site(method.weights(conditions[parts[i]]))
            columns = rows if i == j else _by_site(method.weights(conditions[parts[j]]))
            for site, tensors in rows.items():
                gram_KK = found.setdefault(site, np.zeros((count, count)))
                both = sum((a @ b.T for a, b in zip(tensors, columns[site], strict=True)), start=torch.zeros(()))
                gram_KK[parts[i], parts[j]] = both.cpu().numpy()
                gram_KK[parts[j], parts[i]] = both.T.cpu().numpy()
            progress(done, len(pairs))
    if not found:
        raise PolyloomError(f"method {method.config.name}: it has no weights of its own ({method.summary}).")
    return found


def _by_site(weights: Weights) -> dict[str, list[Tensor]]:
    """All tensors at a place, ``[K, E]`` each."""
    found: dict[str, list[Tensor]] = {}
    for block in weights.blocks:
        for index, site in enumerate(block.sites):
            for tensor in block.tensors.values():
                flat_KE = tensor[:, index].flatten(1).double()
                # Labels that a task does not have are at -inf (psf), in all languages alike.
                found.setdefault(_place(block.kind, site), []).append(flat_KE.masked_fill(~flat_KE.isfinite(), 0.0))
    return found


def _place(kind: str, site: Site) -> str:
    return {"invertible": f"{site.stack}.embedding", "classifier": "head"}.get(kind, str(site))


def _groups(keys: Iterable[str]) -> list[list[int]]:
    """Positions that share a key, where there are several."""
    found: dict[str, list[int]] = {}
    for position, key in enumerate(keys):
        found.setdefault(key, []).append(position)
    return [group for group in found.values() if len(group) > 1]


def _spread(gram_GG: Array) -> tuple[float | None, float]:
    """Distance from the mean over the length of the mean, and in how many directions."""
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
