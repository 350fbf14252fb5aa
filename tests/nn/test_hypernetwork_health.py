"""Generated weights start at the right size, at every width, and rescaling keeps activations in bounds."""

import json

import pytest
import torch

from polyloom.conditions import Condition, Inventory
from polyloom.methods.hyper_adapters import HyperAdapters, HyperAdaptersConfig
from polyloom.nn.blocks import SMALL_STD, xavier_std
from polyloom.weights import BackboneShape, Site, Weights
from tests.shared import start_benchmark

WIDTHS = (64, 102, 204, 612, 2048)
SHAPE = BackboneShape("test", 64, tuple(Site(s, i) for s in ("encoder", "decoder") for i in range(3)), ("layer",))
LANGUAGES = tuple(f"l{i}" for i in range(12))
CONDITIONS = [Condition("mt", LANGUAGES[i], LANGUAGES[i - 1]) for i in range(12)]


def generated(hidden_size: int, **settings) -> Weights:
    torch.manual_seed(0)
    config = HyperAdaptersConfig(adapter_size=24, hidden_size=hidden_size, **settings)
    method = HyperAdapters(config, shape=SHAPE, inventory=Inventory.of(LANGUAGES, ["mt"])).eval()
    with torch.no_grad():
        return method.weights(CONDITIONS)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("hidden_size", WIDTHS)
def test_init_hyper_meets_its_target_in_every_head(hidden_size, rescale):
    tensors = generated(hidden_size, rescale=rescale, init="hyper").blocks[0].tensors
    assert set(tensors) == {"down", "down_bias", "up", "up_bias", "norm_weight", "norm_bias"}
    for name, tensor in tensors.items():
        target = xavier_std(tensor.shape) if name in ("down", "up") else SMALL_STD
        assert float(tensor.std()) == pytest.approx(target, rel=0.05), name
    assert float(tensors["norm_weight"].mean()) == pytest.approx(1.0, abs=0.01), "gain is one plus what is generated"


def test_init_hyper_meets_its_target_for_conditions_it_did_not_measure():
    torch.manual_seed(0)
    config = HyperAdaptersConfig(adapter_size=24, hidden_size=204, init="hyper")
    method = HyperAdapters(config, shape=SHAPE, inventory=Inventory.of(LANGUAGES, ["mt"])).eval()
    fresh = [Condition("mt", one, other) for one in LANGUAGES for other in LANGUAGES[::3] if one != other]
    with torch.no_grad():
        tensors = method.weights([c for c in fresh if c not in CONDITIONS]).blocks[0].tensors
    for name in ("down", "up"):
        assert float(tensors[name].std()) == pytest.approx(xavier_std(tensors[name].shape), rel=0.05)


def test_init_default_makes_no_claim_but_that_rescaled_weights_do_not_grow_with_the_width():
    """Xavier heads do not claim to meet the target: what they generate shrinks slowly, or grows without rescaling."""
    flat = [float(generated(d, rescale=True, init="default").blocks[0].tensors["down"].std()) for d in WIDTHS]
    growing = [float(generated(d, rescale=False, init="default").blocks[0].tensors["down"].std()) for d in WIDTHS]
    assert flat == sorted(flat, reverse=True)
    assert growing == sorted(growing)
    assert growing[-1] > 2 * growing[0]


def test_hyperx_generates_what_the_published_model_started_from():
    """A standard deviation of about 0.013, from N(0, 1) embeddings through three layers of N(0, 0.02)."""
    from polyloom.methods.hyperx import HyperX, HyperXConfig

    torch.manual_seed(0)
    encoder = BackboneShape("test", 256, tuple(Site("encoder", i) for i in range(6)), ("output",))
    method = HyperX(HyperXConfig(adapter_size=64), shape=encoder, inventory=Inventory.of(LANGUAGES, ["pos"]))
    with torch.no_grad():
        tensors = method.weights([f"pos/{language}" for language in LANGUAGES]).blocks[0].tensors
    for name in ("down", "up"):
        assert float(tensors[name].std()) == pytest.approx(0.014, abs=0.002)


@pytest.mark.nightly
def test_toy_training_without_rescaling_blows_up_with_width(tmp_path):
    result = tmp_path / "result.json"
    options = ["--steps", "120", "--seeds", "1", "--width", "16", "--width", "128", "--json", result]
    start_benchmark("rescaling", *options)
    runs = {(r["hidden_size"], r["rescale"]): r for r in json.loads(result.read_text())["results"]}
    assert runs[128, False]["largest_activation"] > 20 * runs[16, False]["largest_activation"]
    assert runs[128, True]["largest_activation"] < 5 * runs[16, True]["largest_activation"]
    assert runs[128, True]["final_loss"] <= runs[16, True]["final_loss"]
    assert runs[128, False]["final_loss"] > runs[128, True]["final_loss"]
