"""Compare the language vectors of a model with one another and with language families and typology.

Results do not depend on the order of the languages: computations sort them by name.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from polyloom.data.typology import Typology
from polyloom.errors import PolyloomError
from polyloom.model import Model
from polyloom.nn.tables import GrowingEmbedding
from polyloom.probe.projection import TIE, Projection, project
from polyloom.probe.spectra import Array

Vectors = Mapping[str, Sequence[float]]
NEIGHBOURS = 5
SHUFFLES = {"purity": 9999, "correlation": 999}
FEWEST = 3  # languages; with fewer, families and features are not compared
_COLUMNS = 1 << 20  # numbers of each adapter that are multiplied at a time


def language_vectors(model: Model) -> dict[str, list[float]]:
    """Return a vector for each language: its embedding, or its stored adapters.

    Stored adapters have millions of parameters. Their vectors are coordinates in the space that they span, with as many
    dimensions as there are languages. All lengths and angles are those of the adapters.
    """
    method = model.method
    trainable = [table for table in method.growing("language") if table.trainable]
    tables = {name: table for name, table in method.named_modules() if table in trainable}
    embeddings = [t for name, t in tables.items() if isinstance(t, GrowingEmbedding) and not name.endswith("logvar")]
    if not tables:
        raise PolyloomError(
            f"method {method.config.name}: has no parameters per language ({method.summary}). "
            "Probe a method that embeds languages or stores an adapter for each, such as hyperx or madx."
        )
    if embeddings:
        table_NE = torch.cat([e.get_parameter("weight").detach() for e in embeddings], dim=1).double()
    else:
        # Each language has millions of parameters, of which only inner products count. With the eigendecomposition
        # G = VΛVᵀ of their matrix, the rows of V√Λ have the same inner products and one number per language.
        stored = [p.detach().flatten(1) for table in tables.values() for p in table.parameters()]
        gram_NN = stored[0].new_zeros(len(stored[0]), len(stored[0]), dtype=torch.float64)
        for parameters_NE in stored:
            for columns in torch.split(parameters_NE, _COLUMNS, dim=1):  # in float64 only some at a time
                columns_NE = columns.double()
                gram_NN += columns_NE @ columns_NE.T
        values_N, vectors_NN = torch.linalg.eigh(gram_NN)
        table_NE = vectors_NN * values_N.clamp(min=0.0).sqrt()  # rounding makes some eigenvalues negative
    return dict(zip(method.languages, table_NE.cpu().tolist(), strict=True))


def probe_languages(
    vectors: Vectors, typology: Typology | None = None, *, projection: Projection = "pca"
) -> dict[str, Any]:
    """Compute map, nearest neighbours, tree and agreement with typology.

    Args:
        vectors: A vector for each language; only its direction counts.
        typology: Language families and features; languages without them are left out of the agreement.
        projection: How the map is made: principal components (``pca``, the default) or ``umap``.

    Returns:
        ``languages``, ``families``, ``projection``, ``map``, ``neighbours``, ``linkage`` (SciPy's convention) and
        ``agreement``.
    """
    if find_spec("scipy") is None:
        raise PolyloomError("probe languages: the package scipy is not installed. pip install 'polyloom[probe]'")
    if len(vectors) < 2:
        raise PolyloomError(f"probe languages: {len(vectors)} language; there is nothing to compare.")
    typology, languages, names = typology or Typology(), list(vectors), sorted(vectors)
    vectors_NE = np.array([vectors[name] for name in names], dtype=np.float64)
    norms_N1 = np.linalg.norm(vectors_NE, axis=1, keepdims=True)
    unit_NE: Array = vectors_NE / np.where(norms_N1 > 0, norms_N1, 1.0)  # a vector of zeros stays one
    similarity_NN = unit_NE @ unit_NE.T

    neighbours: dict[str, list[list[Any]]] = {}
    for i, name in enumerate(names):
        nearest = np.argsort(-similarity_NN[i], kind="stable").tolist()  # of equally near ones the first by name
        others = [j for j in nearest if j != i][:NEIGHBOURS]
        neighbours[name] = [[names[j], float(similarity_NN[i, j])] for j in others]

    # The tree is computed in the order of names and stored in that of `languages`: only its leaves are renumbered,
    # clusters keep their numbers from N on.
    merges = linkage(1.0 - similarity_NN)
    place = [languages.index(name) for name in names]
    return {
        "languages": languages,
        "families": {name: typology.family(name) for name in languages},
        "projection": projection,
        "map": dict(zip(names, project(unit_NE, projection).tolist(), strict=True)),
        "neighbours": neighbours,
        "linkage": [
            [*sorted(place[x] if x < len(names) else x for x in (left, right)), height, size]
            for left, right, height, size in merges
        ],
        "agreement": agreement(names, similarity_NN, typology),
    }


def linkage(distance_NN: Array) -> list[tuple[int, int, float, int]]:
    """Cluster languages by average linkage.

    Returns:
        Rows as in SciPy: the two clusters that are joined, the height and the number of languages below. Numbers below
        N are languages; N + i is the cluster of row i.
    """
    from scipy.cluster.hierarchy import average  # noqa: PLC0415 - an extra

    condensed = distance_NN[np.triu_indices(len(distance_NN), 1)]
    rows = average(np.maximum(condensed, 0.0))  # rounding makes some negative
    return [(int(left), int(right), float(height), int(size)) for left, right, height, size in rows]


def members(merges: Sequence[Sequence[Any]]) -> dict[int, list[int]]:
    """List the leaves below each cluster of a linkage, in the order that draws the tree without crossings."""
    count = len(merges) + 1
    below = {leaf: [leaf] for leaf in range(count)}
    for step, (left, right, *_) in enumerate(merges):
        below[count + step] = below[left] + below[right]
    return below


def agreement(names: Sequence[str], similarity_NN: Array, typology: Typology) -> dict[str, float | None]:
    """Test whether nearest neighbours share a family and whether similarity follows typological distance.

    Both are permutation tests over languages. Languages without a known family (or features) are left out.
    """
    keys = ("purity", "chance", "p_value", "correlation", "correlation_p_value")
    results: dict[str, float | None] = dict.fromkeys(keys)
    families = [typology.family(name) for name in names]
    known = [i for i, family in enumerate(families) if family is not None]
    if len(known) >= FEWEST:
        values = purity(similarity_NN[np.ix_(known, known)], [families[i] or "" for i in known])
        results |= dict(zip(("purity", "chance", "p_value"), values, strict=True))
    known = [i for i, name in enumerate(names) if typology.distance(name, name) is not None]
    distances = [[typology.distance(names[i], names[j]) for j in known] for i in known]
    if len(known) > FEWEST and not any(d is None for row in distances for d in row):
        similar_MM = similarity_NN[np.ix_(known, known)]
        results["correlation"], results["correlation_p_value"] = correlation(
            1.0 - similar_MM, np.array(distances, dtype=np.float64)
        )
    return results


def purity(similarity_NN: Array, groups: Sequence[str], *, seed: int = 0) -> tuple[float, float, float]:
    """Compute the share of nearest neighbours in the same group, its mean over shuffled groups, and the p-value."""
    labels_N = np.unique(groups, return_inverse=True)[1]
    # No language is its own nearest neighbour. Neighbours stay as they are while families are shuffled.
    nearest_N = (similarity_NN - np.diag(np.full(len(labels_N), np.inf))).argmax(1)
    shuffled = np.random.default_rng(seed).permuted(np.tile(labels_N, (SHUFFLES["purity"], 1)), axis=1)
    chance = (shuffled == shuffled[:, nearest_N]).mean(1)
    share = float((labels_N == labels_N[nearest_N]).mean())
    return share, float(chance.mean()), _p_value(chance, share)


def correlation(a_NN: Array, b_NN: Array, *, seed: int = 0) -> tuple[float | None, float | None]:
    """Compute Spearman's correlation of two distance matrices and its p-value by the Mantel test.

    Both are None where all distances of a matrix are equal.
    """
    from scipy.stats import rankdata  # noqa: PLC0415 - an extra

    pairs = np.triu_indices(len(a_NN), 1)
    # Distances that differ by rounding alone get the same rank.
    a_ranks, b_ranks = (rankdata(np.round(table_NN[pairs], 12)) for table_NN in (a_NN, b_NN))
    if not (np.ptp(a_ranks) and np.ptp(b_ranks)):
        return None, None
    b_ranks_NN = np.zeros_like(b_NN, dtype=np.float64)
    b_ranks_NN[pairs] = b_ranks
    b_ranks_NN += b_ranks_NN.T
    # Pairs of one language depend on one another, so languages are shuffled and not pairs: rows and columns of one
    # matrix in the same order (Mantel 1967). The first order is that of the data.
    random = np.random.default_rng(seed)
    orders = [np.arange(len(a_NN)), *(random.permutation(len(a_NN)) for _ in range(SHUFFLES["correlation"]))]
    value, *chance = (float(np.corrcoef(a_ranks, b_ranks_NN[np.ix_(order, order)][pairs])[0, 1]) for order in orders)
    return value, _p_value(np.array(chance), value)


def _p_value(chance: Array, value: float) -> float:
    return float((1 + (chance >= value - TIE).sum()) / (1 + len(chance)))
