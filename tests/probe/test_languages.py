"""Planted structure is found, shuffled structure is not, and no number depends on the order of languages."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import cophenet
from scipy.spatial.distance import squareform

from polyloom.data.typology import Typology
from polyloom.errors import PolyloomError
from polyloom.methods import METHODS
from polyloom.probe.languages import correlation, language_vectors, linkage, members, probe_languages, purity
from polyloom.probe.projection import flat_map
from tests.contracts.tiny import LANGUAGES, tiny_model

GROUPS = {"Big": ["aaa", "bbb", "ccc", "ddd", "eee"], "Small": ["fff", "ggg", "hhh", "iii"]}
FAMILIES = {name: group for group, names in GROUPS.items() for name in names}


def planted(spread: float = 0.1, seed: int = 0) -> dict[str, list[float]]:
    draw = np.random.default_rng(seed)
    centers = {"Big": np.eye(8)[0], "Small": np.eye(8)[1]}
    return {name: (centers[group] + spread * draw.normal(size=8)).tolist() for name, group in FAMILIES.items()}


def features() -> dict[str, np.ndarray]:
    """Those of a group are alike but for one."""
    return {
        name: np.array([float(group == "Big")] * 4 + [float(i % 2)]) for i, (name, group) in enumerate(FAMILIES.items())
    }


def test_planted_groups_are_found():
    found = probe_languages(planted(), Typology(FAMILIES, features()))
    agreement = found["agreement"]
    assert agreement["purity"] == 1.0
    assert agreement["chance"] == pytest.approx((5 / 9) * (4 / 8) + (4 / 9) * (3 / 8), abs=0.01)
    assert agreement["p_value"] < 0.02
    assert agreement["correlation"] > 0.7
    assert agreement["correlation_p_value"] < 0.02
    for name, group in FAMILIES.items():
        assert len(found["neighbours"][name]) == 5
        nearest, similarity = found["neighbours"][name][0]
        assert FAMILIES[nearest] == group
        assert nearest != name
        one, other = (np.array(planted()[n]) for n in (name, nearest))
        assert similarity == pytest.approx(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    side = {group: {np.sign(found["map"][name][0]) for name in names} for group, names in GROUPS.items()}
    assert side in ({"Big": {1.0}, "Small": {-1.0}}, {"Big": {-1.0}, "Small": {1.0}})
    left, right, height, size = found["linkage"][-1]
    below = members(found["linkage"])
    split = {frozenset(found["languages"][leaf] for leaf in below[half]) for half in (left, right)}
    assert split == {frozenset(names) for names in GROUPS.values()}
    assert (height > 2 * found["linkage"][-2][2], size) == (True, 9)


def test_shuffled_families_do_not_agree_and_p_is_spread_evenly():
    draw = np.random.default_rng(1)
    names = list(FAMILIES)
    values: list[float] = []
    far: list[float] = []
    table = np.array(list(planted().values()))
    for _ in range(60):
        labels = list(draw.permutation(list(FAMILIES.values())))
        values.append(purity(table @ table.T, labels)[2])
        noise = draw.normal(size=(len(names), 4))
        other = np.linalg.norm(noise[:, None] - noise[None], axis=-1)
        if len(far) < 25:
            far.append(correlation(np.linalg.norm(table[:, None] - table[None], axis=-1), other)[1] or 0.0)
    for found in (values, far):
        assert 0.35 < np.mean(found) < 0.9, "purity has few values, so p is large rather than small"
        assert np.mean(np.array(found) <= 0.05) < 0.15


def test_nothing_depends_on_the_order_of_languages():
    vectors = planted(spread=0.5)
    vectors["jjj"] = vectors["aaa"]  # a tie
    typology = Typology(FAMILIES, features())
    first = probe_languages(vectors, typology)
    turned = dict(sorted(vectors.items(), key=lambda item: item[0][::-1], reverse=True))
    again = probe_languages(turned, typology)
    assert again["languages"] == list(turned) != first["languages"]
    for key in ("map", "neighbours", "agreement", "families"):
        assert again[key] == first[key], key
    heights = []
    for found in (first, again):
        table, at = squareform(cophenet(found["linkage"])), found["languages"].index
        heights.append({(a, b): table[at(a), at(b)] for a in vectors for b in vectors})
    assert heights[0] == heights[1]


def brute_force(distance: np.ndarray) -> list[tuple[frozenset[int], float]]:
    """Average linkage by its definition: the mean over all pairs of members."""
    clusters, joins = [frozenset([i]) for i in range(len(distance))], []
    while len(clusters) > 1:
        height, a, b = min(
            ((np.mean([distance[i, j] for i in a for j in b]), a, b) for a, b in itertools.combinations(clusters, 2)),
            key=lambda one: one[0],
        )
        clusters = [c for c in clusters if c not in (a, b)] + [a | b]
        joins.append((a | b, float(height)))
    return joins


@pytest.mark.parametrize("seed", range(5))
def test_linkage_is_average_linkage(seed):
    points = np.random.default_rng(seed).normal(size=(12, 3))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    merges, below = linkage(distance), members(linkage(distance))
    expected = brute_force(distance)
    assert [frozenset(below[12 + i]) for i in range(11)] == [joined for joined, _ in expected]
    assert [height for _, _, height, _ in merges] == pytest.approx([height for _, height in expected])
    assert all(left < right and size == len(below[12 + i]) for i, (left, right, _, size) in enumerate(merges))
    table = squareform(cophenet(merges))
    for i, j in itertools.combinations(range(12), 2):
        assert table[i, j] == table[j, i] == pytest.approx(next(h for joined, h in expected if {i, j} <= joined))


def test_the_map_keeps_what_two_dimensions_can_keep():
    flat = np.random.default_rng(0).normal(size=(7, 2))
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0][:2]
    found = flat_map(flat @ rotation)
    assert np.allclose(
        np.linalg.norm(found[:, None] - found[None], axis=-1), np.linalg.norm(flat[:, None] - flat[None], axis=-1)
    )
    assert np.allclose(found, flat_map(-(flat @ rotation)) * np.sign((found * flat_map(-(flat @ rotation))).sum(0)))
    assert np.abs(found).max(0) == pytest.approx(found.max(0)), "the farthest is on the positive side"
    assert np.allclose(flat_map(np.array([[1.0], [3.0]])), [[1.0, 0.0], [-1.0, 0.0]]), "of a tie, the first"


def test_correlation_is_spearmans_by_hand():
    points = np.array([0.0, 1.0, 3.0, 7.0])
    distance = np.abs(points[:, None] - points[None])
    assert correlation(distance, distance**3)[0] == pytest.approx(1.0), "ranks alone count"
    assert correlation(distance, -distance)[0] == pytest.approx(-1.0)
    pairs = np.triu_indices(4, 1)
    other = np.zeros((4, 4))
    other[pairs] = [1, 1, 2, 2, 3, 3]
    # Distances 1 3 7 2 6 4 have ranks 1 3 6 2 5 4; the others 1.5 1.5 3.5 3.5 5.5 5.5.
    ranks = [1, 3, 6, 2, 5, 4], [1.5, 1.5, 3.5, 3.5, 5.5, 5.5]
    assert correlation(distance, other + other.T)[0] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert correlation(distance, np.ones((4, 4))) == (None, None), "all equally far: nothing to correlate"


def test_what_is_not_known_is_left_out_and_said():
    found = probe_languages(planted(), Typology())
    assert set(found["families"].values()) == {None}
    assert found["agreement"] == dict.fromkeys(("purity", "chance", "p_value", "correlation", "correlation_p_value"))
    partly = probe_languages(planted(), Typology({n: f for n, f in FAMILIES.items() if n != "aaa"}))
    assert partly["families"]["aaa"] is None
    assert partly["agreement"]["purity"] == 1.0
    with pytest.raises(PolyloomError, match="1 language; there is nothing to compare"):
        probe_languages({"aaa": [1.0]})


def test_without_scipy_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(PolyloomError, match=r"scipy is not installed. pip install 'polyloom\[probe\]'"):
        probe_languages(planted())


def test_a_language_without_any_vector_has_no_neighbours_but_harms_none():
    found = probe_languages(planted() | {"zzz": [0.0] * 8})
    assert {similarity for _, similarity in found["neighbours"]["zzz"]} == {0.0}
    assert all(math.isfinite(height) for *_, height, _ in found["linkage"])


@pytest.mark.parametrize(
    ("method", "family"),
    [
        ("hyperx", "bert"),
        ("hyper-adapters", "m2m_100"),
        ("psf", "bert"),
        ("madx", "bert"),
        ("lang-adapters", "m2m_100"),
    ],
)
def test_vectors_are_those_of_the_method(method, family):
    model = tiny_model(method, family)
    vectors = language_vectors(model)
    assert list(vectors) == list(LANGUAGES)
    tables = {
        "hyperx": ["embeddings.language.weight"],
        "hyper-adapters": ["embeddings.language.weight"],
        "psf": ["latents.language_mean.weight"],
        "madx": [n for n, _ in model.method.named_parameters() if n.startswith(("language_", "invertible_"))],
        "lang-adapters": [n for n, _ in model.method.named_parameters() if n.startswith("adapters.")],
    }[method]
    flat = torch.cat([model.method.get_parameter(name).flatten(1) for name in tables], dim=1).double()
    found = torch.tensor(list(vectors.values()), dtype=torch.float64)
    assert torch.allclose(found @ found.T, (flat @ flat.T).detach()), "lengths and angles are those of the weights"
    assert len(vectors["en"]) <= max(len(LANGUAGES), 5)


def test_every_method_has_vectors_or_says_why_not():
    for name in METHODS:
        model = tiny_model(name, "bert")
        if name in ("full", "dense", "badx", "multilingual", "pair-adapters"):
            with pytest.raises(PolyloomError, match=f"method {name}: has no parameters per language"):
                language_vectors(model)
        else:
            assert len(language_vectors(model)) == len(LANGUAGES)


def test_a_language_that_was_added_is_there():
    model = tiny_model("hyperx", "bert")
    model.method.add_language("de", like="en")
    vectors = language_vectors(model)
    assert list(vectors)[-1] == "de"
    assert vectors["de"] == vectors["en"]
