"""Analyse a model's language vectors, and compare them with language families and typological features.

Everything is computed in alphabetical order and returned in the given order, so that no number depends on the latter.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyloom.data.typology import Typology
from polyloom.errors import PolyloomError
from polyloom.model import Model
from polyloom.nn.tables import GrowingEmbedding
from polyloom.probe.spectra import Array

Vectors = Mapping[str, Sequence[float]]
NEIGHBOURS = 5
SHUFFLES = {"purity": 9999, "correlation": 999}
FEWEST = 3  # languages that a neighbour can be looked for among
TIE = 1e-9
_COLUMNS = 1 << 20  # numbers of each adapter that are multiplied at a time


def language_vectors(model: Model) -> dict[str, list[float]]:
    """Return a vector for every language: its embedding, or its stored adapters.

    Stored adapters have millions of parameters. They are returned as coordinates in the space that they span, as many
    as there are languages, with the same lengths and angles.
    """
    method = model.method
    trainable = [table for table in method.growing("language") if table.trainable]
    tables = {name: table for name, table in method.named_modules() if table in trainable}
    embeddings = [t for name, t in tables.items() if isinstance(t, GrowingEmbedding) and not name.endswith("logvar")]
    if not tables:
        raise PolyloomError(
            f"method {method.config.name}: has no parameters per language ({method.summary}). "
            "Use a method with language embeddings or an adapter per language, such as hyperx or madx."
        )
    if embeddings:
        table_NE = torch.cat([e.get_parameter("weight").detach() for e in embeddings], dim=1).double()
    else:
        stored = [p.detach().flatten(1) for table in tables.values() for p in table.parameters()]
        table_NE = _coordinates(stored)
    return dict(zip(method.languages, table_NE.cpu().tolist(), strict=True))


def _coordinates(tables: Sequence[Tensor]) -> Tensor:
    """Compute coordinates with the same inner products as the rows of the tables."""
    gram_NN = tables[0].new_zeros(len(tables[0]), len(tables[0]), dtype=torch.float64)
    for part in (part.double() for table in tables for part in torch.split(table, _COLUMNS, dim=1)):
        gram_NN += part @ part.T
    values_N, vectors_NN = torch.linalg.eigh(gram_NN)
    coordinates_NN: Tensor = vectors_NN * values_N.clamp(min=0.0).sqrt()
    return coordinates_NN


def probe_languages(vectors: Vectors, typology: Typology | None = None) -> dict[str, Any]:
    """Compute a map, nearest neighbours, a tree, and the agreement with typology.

    Args:
        vectors: Vectors of languages; only their directions matter.
        typology: Families and features of the languages. Defaults to none; unknown languages are left out.

    Returns:
        ``languages``, ``families``, ``map``, ``neighbours``, ``linkage`` (SciPy's convention), ``agreement``.
    """
    if len(vectors) < 2:
        raise PolyloomError(f"probe languages: {len(vectors)} language; there is nothing to compare.")
    typology, given, names = typology or Typology(), list(vectors), sorted(vectors)
    unit_NE = _unit(np.array([vectors[name] for name in names], dtype=np.float64))
    similarity_NN = unit_NE @ unit_NE.T
    merges = linkage(1.0 - similarity_NN)
    place = [given.index(name) for name in names]
    return {
        "languages": given,
        "families": {name: typology.family(name) for name in given},
        "map": dict(zip(names, flat_map(unit_NE).tolist(), strict=True)),
        "neighbours": {name: _neighbours(names, similarity_NN[i], i) for i, name in enumerate(names)},
        "linkage": [
            [*sorted(place[x] if x < len(names) else x for x in (left, right)), height, size]
            for left, right, height, size in merges
        ],
        "agreement": agreement(names, similarity_NN, typology),
    }


def _unit(vectors_NE: Array) -> Array:
    norms_N = np.linalg.norm(vectors_NE, axis=1, keepdims=True)
    unit_NE: Array = vectors_NE / np.where(norms_N > 0, norms_N, 1.0)
    return unit_NE


def flat_map(vectors_NE: Array) -> Array:
    """Coordinates on the two directions of largest variance ``[N, 2]``.

    Signs mean nothing; here whoever lies farthest out in a direction (of several the first) is on the positive side.
    """
    left, values, _ = np.linalg.svd(vectors_NE - vectors_NE.mean(0), full_matrices=False)
    scores_N2 = np.zeros((len(vectors_NE), 2))
    width = min(2, len(values))
    scores_N2[:, :width] = left[:, :width] * values[:width]
    farthest = (np.abs(scores_N2) >= np.abs(scores_N2).max(0) - TIE).argmax(0)
    signed: Array = scores_N2 * np.where(scores_N2[farthest, [0, 1]] < 0, -1.0, 1.0)
    return signed


def _neighbours(names: Sequence[str], similarity_N: Array, own: int) -> list[list[Any]]:
    others = [i for i in range(len(names)) if i != own]
    nearest = sorted(others, key=lambda i: (-similarity_N[i], names[i]))[:NEIGHBOURS]
    return [[names[i], float(similarity_N[i])] for i in nearest]


def linkage(distance_NN: Array) -> list[tuple[int, int, float, int]]:
    """Average-linkage clustering: which two are joined at which height, and how many that makes.

    Numbers below N are languages; N + i is what the i-th row has joined.
    """
    count = len(distance_NN)
    between_NN = np.array(distance_NN, dtype=np.float64)
    np.fill_diagonal(between_NN, np.inf)
    number, size = list(range(count)), [1] * count
    merges: list[tuple[int, int, float, int]] = []
    for step in range(count - 1):
        i, j = divmod(int(between_NN.argmin()), count)
        height, both = max(0.0, float(between_NN[i, j])), size[i] + size[j]
        left, right = sorted((number[i], number[j]))
        merges.append((left, right, height, both))
        mean_N = (size[i] * between_NN[i] + size[j] * between_NN[j]) / both
        between_NN[i], between_NN[:, i] = mean_N, mean_N
        between_NN[j], between_NN[:, j], between_NN[i, i] = np.inf, np.inf, np.inf
        number[i], size[i] = count + step, both
    return merges


def members(merges: Sequence[Sequence[Any]]) -> dict[int, list[int]]:
    """The leaves below every number of a linkage, in the order in which a tree is drawn without crossings."""
    count = len(merges) + 1
    below = {leaf: [leaf] for leaf in range(count)}
    for step, (left, right, *_) in enumerate(merges):
        below[count + step] = below[left] + below[right]
    return below


def cophenetic(merges: Sequence[Sequence[Any]]) -> Array:
    """For every two leaves the height at which they are joined ``[N, N]``."""
    below, heights_NN = members(merges), np.zeros((len(merges) + 1, len(merges) + 1))
    for left, right, height, _ in merges:
        heights_NN[np.ix_(below[left], below[right])] = height
        heights_NN[np.ix_(below[right], below[left])] = height
    return heights_NN


def agreement(names: Sequence[str], similarity_NN: Array, typology: Typology) -> dict[str, float | None]:
    """Nearest neighbours against families, similarities against typological distances; both against shuffled languages.

    Languages whose family (or features) are not known are left out.
    """
    found: dict[str, float | None] = dict.fromkeys(("purity", "chance", "p", "correlation", "correlation_p"))
    families = [typology.family(name) for name in names]
    known = [i for i, family in enumerate(families) if family is not None]
    if len(known) >= FEWEST:
        chosen = purity(similarity_NN[np.ix_(known, known)], [families[i] or "" for i in known])
        found |= dict(zip(("purity", "chance", "p"), chosen, strict=True))
    known = [i for i, name in enumerate(names) if typology.distance(name, name) is not None]
    apart = [[typology.distance(names[i], names[j]) for j in known] for i in known]
    if len(known) > FEWEST and not any(d is None for row in apart for d in row):
        similar_MM = similarity_NN[np.ix_(known, known)]
        found["correlation"], found["correlation_p"] = correlation(1.0 - similar_MM, np.array(apart, dtype=np.float64))
    return found


def purity(similarity_NN: Array, groups: Sequence[str], *, seed: int = 0) -> tuple[float, float, float]:
    """Share of nearest neighbours that are of one's own group; that of shuffled groups; how often those are as good."""
    labels_N = np.unique(groups, return_inverse=True)[1]
    nearest_N = (similarity_NN - np.diag(np.full(len(labels_N), np.inf))).argmax(1)
    shuffled = np.random.default_rng(seed).permuted(np.tile(labels_N, (SHUFFLES["purity"], 1)), axis=1)
    chance = (shuffled == shuffled[:, nearest_N]).mean(1)
    found = float((labels_N == labels_N[nearest_N]).mean())
    return found, float(chance.mean()), _p_value(chance, found)


def correlation(a_NN: Array, b_NN: Array, *, seed: int = 0) -> tuple[float | None, float | None]:
    """Spearman's correlation of two tables of distances, and how often shuffled ones correlate as much (Mantel)."""
    pairs = np.triu_indices(len(a_NN), 1)
    tables = []
    for table_NN in (a_NN, b_NN):
        ranks = _ranks(table_NN[pairs])
        if not ranks.std():
            return None, None  # all are equally far apart
        full_NN = np.zeros_like(table_NN, dtype=np.float64)
        full_NN[pairs] = (ranks - ranks.mean()) / ranks.std()
        tables.append(full_NN + full_NN.T)
    one_NN, other_NN = tables
    found = float((one_NN * other_NN).mean() * len(a_NN) / (len(a_NN) - 1))  # the diagonal has no pairs
    draw, chance = np.random.default_rng(seed), []
    for _ in range(SHUFFLES["correlation"]):
        order = draw.permutation(len(a_NN))
        chance.append((one_NN * other_NN[np.ix_(order, order)]).mean() * len(a_NN) / (len(a_NN) - 1))
    return found, _p_value(np.array(chance), found)


def _p_value(chance: Array, found: float) -> float:
    return float((1 + (chance >= found - TIE).sum()) / (1 + len(chance)))


def _ranks(values: Array) -> Array:
    """Ranks, of equal values their mean; distances that differ by rounding alone are equal."""
    _, place, counts = np.unique(np.round(values, 12), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts - 1) / 2.0)[place]
    return ranks
