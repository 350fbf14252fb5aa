"""Where languages differ is found, and nowhere else; memory is bounded and changes nothing."""

import numpy as np
import pytest
import torch

from polyloom.conditions import Condition
from polyloom.errors import PolyloomError
from polyloom.methods import METHODS
from polyloom.methods.hyperx import HyperX
from polyloom.model import supported_conditions
from polyloom.nn.tables import Bank
from polyloom.probe.capacity import probe_capacity
from polyloom.probe.spectra import effective_rank, participation_ratio
from polyloom.probe.weights import inner_products, probe_weights
from tests.contracts.tiny import LANGUAGES, tiny_model

POS = [Condition("pos", language) for language in LANGUAGES]
BOTH = POS + [Condition("ner", language) for language in LANGUAGES]


def bank(model) -> Bank:
    found = model.method.get_submodule("adapters")
    assert isinstance(found, Bank)
    return found


def test_a_model_that_ignores_languages_has_no_spread_between_them():
    found = probe_weights(tiny_model("multilingual", "bert").method, BOTH)
    assert {site["between_languages"] for site in found["sites"]} == {0.0}
    assert {site["effective_rank"] for site in found["sites"]} == {0.0}
    assert all(site["between_tasks"] > 0.1 for site in found["sites"])
    blind = tiny_model("hyperx", "bert", language_layers=0)
    assert {site["between_languages"] for site in probe_weights(blind.method, BOTH)["sites"]} == {0.0}


def test_the_only_site_that_depends_on_languages_is_found():
    found = probe_weights(tiny_model("hyperx", "bert", language_layers=1).method, BOTH)
    first, second = found["sites"]
    assert (first["site"], second["site"]) == ("encoder.0", "encoder.1")
    assert first["between_languages"] > 0.01
    assert second["between_languages"] == second["effective_rank"] == 0.0
    assert min(first["between_tasks"], second["between_tasks"]) > 0.01


def test_a_model_that_ignores_tasks_has_no_spread_between_them():
    sites = probe_weights(tiny_model("lang-adapters", "bert").method, BOTH)["sites"]
    assert {site["between_tasks"] for site in sites} == {0.0}
    assert min(site["between_languages"] for site in sites) > 0.1


def test_spread_and_similarity_by_hand():
    model = tiny_model("madx", "bert", invertible=False)
    found = probe_weights(model.method, BOTH)
    with torch.no_grad():
        made = model.method.weights(BOTH)
    flat = torch.cat([t.flatten(1) for block in made.blocks for t in block.tensors.values()], dim=1).double()
    unit = flat / flat.norm(dim=1, keepdim=True)
    assert np.allclose(found["similarity"], unit @ unit.T)
    for index, site in enumerate(found["sites"]):
        parts = [t[:, index].flatten(1) for block in made.blocks for t in block.tensors.values()]
        table = torch.cat(parts, dim=1).double().unflatten(0, (2, len(LANGUAGES)))
        for key, dim in (("between_languages", 1), ("between_tasks", 0)):
            mean = table.mean(dim, keepdim=True)
            distance = (table - mean).square().sum(-1).mean(dim).sqrt()
            assert site[key] == pytest.approx(float((distance / mean.norm(dim=-1).squeeze(dim)).mean()))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_effective_rank_of_planted_sets(rank):
    model = tiny_model("lang-adapters", "bert")
    draw = np.random.default_rng(0)
    centred = np.linalg.qr(np.concatenate([np.ones((6, 1)), draw.normal(size=(6, rank))], axis=1))[0][:, 1:]
    for name, parameter in bank(model).named_parameters():
        size = parameter[0, 0].numel()
        if name == "down":
            directions = np.linalg.qr(draw.normal(size=(size, rank)))[0]
            planted = torch.tensor(7 + centred @ directions.T, dtype=torch.float32)
            parameter.data[:] = planted.view(6, 1, *parameter.shape[2:])
        else:
            parameter.data[:] = parameter.data[:1]
    for site in probe_weights(model.method, POS)["sites"]:
        assert site["effective_rank"] == pytest.approx(rank, abs=1e-3)


def test_ranks_of_spectra_by_hand():
    assert effective_rank(np.array([4.0, 4.0, 4.0, 0.0])) == pytest.approx(3.0)
    assert effective_rank(np.zeros(3)) == participation_ratio(np.zeros(3)) == 0.0
    assert participation_ratio(np.array([2.0, 2.0, 0.0])) == pytest.approx(2.0)
    assert participation_ratio(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert effective_rank(np.array([9.0, 1.0])) == pytest.approx(np.exp(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25))))


@pytest.mark.parametrize("method", ["hyperx", "madx", "psf", "hyper-adapters", "badx"])
def test_few_at_a_time_give_what_all_together_give(method):
    model = tiny_model(method, "bert")
    conditions = [c for c in supported_conditions(model.method) if c.task != "mt"]
    whole = probe_weights(model.method, conditions)
    told: list[tuple[int, int]] = []
    parts = probe_weights(model.method, conditions, max_bytes=1, progress=lambda *how_far: told.append(how_far))
    assert np.allclose(parts["similarity"], whole["similarity"])
    count = len(conditions) * (len(conditions) + 1) // 2
    assert told == [(done, count) for done in range(1, count + 1)]
    for one, other in zip(parts["sites"], whole["sites"], strict=True):
        assert one["site"] == other["site"]
        for key in ("between_languages", "between_tasks", "effective_rank"):
            assert one[key] == pytest.approx(other[key], rel=1e-5)


def test_what_is_held_at_a_time_is_bounded(monkeypatch):
    model = tiny_model("hyperx", "bert")
    size, held = 8 * model.method.weights(POS[:1]).num_parameters(), []
    make = model.method.weights

    def count(conditions):
        held.append(len(conditions))
        return make(conditions)

    monkeypatch.setattr(model.method, "weights", count)
    inner_products(model.method, BOTH, max_bytes=5 * size)
    assert max(held) == 5


def test_the_order_of_conditions_does_not_matter():
    model = tiny_model("hyperx", "bert")
    first, turned = probe_weights(model.method, BOTH), probe_weights(model.method, BOTH[::-1])
    assert np.allclose(np.array(turned["similarity"])[::-1, ::-1], first["similarity"])
    for one, other in zip(first["sites"], turned["sites"], strict=True):
        assert one["between_languages"] == pytest.approx(other["between_languages"])


def test_every_place_that_weights_go_to_has_a_name():
    places = {
        "madx": ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "encoder.embedding", "decoder.embedding"],
        "psf": ["head"],
    }
    for method, expected in places.items():
        model = tiny_model(method, "m2m_100")
        assert [s["site"] for s in probe_weights(model.method, supported_conditions(model.method))["sites"]] == expected


def test_training_state_and_randomness_are_left_alone():
    model = tiny_model("psf", "bert")
    model.train()
    first, again = (probe_weights(model.method, POS)["similarity"] for _ in range(2))
    assert first == again, "means, not samples"
    assert model.method.training


def test_what_is_served():
    assert supported_conditions(tiny_model("hyperx", "bert").method)[:7] == [*POS, Condition("ner", "en")]
    mt = [c for c in supported_conditions(tiny_model("hyper-adapters", "m2m_100").method) if c.task == "mt"]
    assert [str(c) for c in mt] == ["mt/en/tr", "mt/tr/sw", "mt/sw/yo", "mt/yo/no", "mt/no/quy", "mt/quy/en"]
    for name in METHODS:
        method = tiny_model(name, "bert").method
        for condition in supported_conditions(method):
            method.require_supported(condition)


def test_what_has_no_weights_or_nothing_to_compare_is_refused():
    with pytest.raises(PolyloomError, match="method full: has no adapter weights"):
        probe_weights(tiny_model("full", "bert").method, POS)
    with pytest.raises(PolyloomError, match="1 condition; there is nothing to compare"):
        probe_weights(tiny_model("hyperx", "bert").method, POS[:1])
    alone = probe_weights(tiny_model("hyperx", "bert").method, POS)["sites"]
    assert {site["between_tasks"] for site in alone} == {None}


def test_capacity_counts_dead_units_and_planted_directions():
    model = tiny_model("hyperx", "bert")
    method = model.method
    assert isinstance(method, HyperX)
    bias = method.get_parameter("hypernetwork.trunk.0.bias")
    with torch.no_grad():
        bias[:3], bias[3:] = -1e3, 10.0
        table = model.method.get_parameter("embeddings.language.weight")
        table[:] = 1.0
        table[:3, 0], table[3:, 0] = 5.0, -5.0  # one direction
    found = probe_capacity(model, BOTH)
    assert found["layers"] == [{"layer": 1, "units": 9, "dead": 3}]
    assert found["embeddings"]["participation_ratio"] == pytest.approx(1.0)
    assert found["embeddings"]["spectrum"][0] == pytest.approx(1.0)
    with torch.no_grad():
        read = torch.cat([method.hypernetwork.trunk(method.vectors(method.encode([c]))).flatten(0, 1) for c in BOTH])
        read = read.double()
    singular = torch.linalg.svdvals(read - read.mean(0))
    singular = singular[singular > 1e-6 * read.norm()]  # below is what fp32 has rounded
    shares = singular / singular.sum()
    assert found["read"]["effective_rank"] == pytest.approx(float((-(shares * shares.log()).sum()).exp()))
    assert found["read"]["width"] == 7
    assert (found["languages"], found["conditions"]) == (6, 12)


@pytest.mark.parametrize(("method", "layers"), [("hyper-adapters", 3), ("psf", 1), ("hyperx", 1)])
def test_capacity_by_parts_is_capacity(method, layers):
    model = tiny_model(method, "bert")
    conditions = [c for c in supported_conditions(model.method) if c.task != "mt"]
    whole, parts = probe_capacity(model, conditions), probe_capacity(model, conditions, max_bytes=1)
    assert whole["layers"] == parts["layers"]
    assert len(whole["layers"]) == layers
    assert parts["read"]["effective_rank"] == pytest.approx(whole["read"]["effective_rank"], rel=1e-4)
    assert not [hook for module in model.method.modules() for hook in module._forward_hooks]


def test_what_generates_nothing_has_no_capacity():
    with pytest.raises(PolyloomError, match="method madx: has no hypernetwork"):
        probe_capacity(tiny_model("madx", "bert"), POS)
