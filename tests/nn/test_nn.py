"""Functions that take one set of weights or one per row give each row the same; block kinds start as they say."""

from collections.abc import Mapping
from typing import get_args

import pytest
import torch
from torch import Tensor

from polyloom.errors import BackboneError, PolyloomError
from polyloom.model import Model
from polyloom.nn.blocks import (
    BLOCKS,
    BlockKind,
    Norm,
    TensorSpec,
    TensorSpecs,
    couple,
    register_block,
    shapes_of,
    xavier_std,
)
from polyloom.nn.hypernetwork import OutputProjections
from polyloom.nn.linear import layer_norm, linear
from polyloom.nn.tables import Bank, GrowingEmbedding, normal_init, xavier_init
from polyloom.weights import BackboneShape, Shapes, Site
from tests.contracts.tiny import LANGUAGES, tiny_backbone, tiny_config, tiny_inputs

B, T, D = 5, 7, 16
SHAPE = BackboneShape(
    "test", D, (Site("encoder", 0), Site("encoder", 1)), ("layer", "output"), {"q": (D, D), "v": (D, D)}
)
PLACES = {"bottleneck": "layer", "lora": "q", "invertible": "embedding", "classifier": "head"}
UNCOUPLED = ("invertible", "unembedding")


def random_weights(shapes, rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(rows, *shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def apply(kind: str, place: str):
    return lambda hidden, weights: BLOCKS[kind].apply(hidden, hidden, weights, place=place)


def shapes_for(kind: str, *, norm: Norm = "none") -> Shapes:
    return shapes_of(BLOCKS[kind].tensors(SHAPE, 6, norm=norm))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        *(
            (apply(kind, place), shapes_for(kind, norm=norm))
            for kind, place in PLACES.items()
            for norm in get_args(Norm)
        ),
        (apply(*UNCOUPLED), shapes_for("invertible")),
        (lambda x, w: linear(x, w["weight"]), {"weight": (9, D)}),
        (lambda x, w: layer_norm(x, w["gain"], w["bias"]), {"gain": (D,), "bias": (D,)}),
    ],
)
def test_one_set_per_row_equals_each_row_with_its_own_set(function, shapes):
    hidden, weights = torch.randn(B, T, D), random_weights(shapes, B)
    together = function(hidden, weights)
    for row in range(B):
        alone = function(hidden[row : row + 1], {name: tensor[row] for name, tensor in weights.items()})
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-5)


def test_blocks_compute_what_they_are_named_after():
    hidden, output = torch.randn(B, T, D), torch.randn(B, T, D)

    def random(kind: str) -> dict[str, Tensor]:
        return {name: tensor[0] for name, tensor in random_weights(shapes_for(kind), 1).items()}

    w = random("lora")
    added = BLOCKS["lora"].apply(output, hidden, w, place="q")
    torch.testing.assert_close(added, output + hidden @ w["q_down"].T @ w["q_up"].T)
    w = random("classifier")
    labels = BLOCKS["classifier"].apply(output, hidden, w, place="head")
    torch.testing.assert_close(labels, hidden @ w["weight"].T + w["bias"])
    w = random("invertible")
    one, two = hidden.chunk(2, dim=-1)
    one = one + (two @ w["f_in"].T + w["f_in_bias"]).relu() @ w["f_out"].T + w["f_out_bias"]
    two = two + (one @ w["g_in"].T + w["g_in_bias"]).relu() @ w["g_out"].T + w["g_out_bias"]
    embedded = BLOCKS["invertible"].apply(hidden, hidden, w, place="embedding")
    torch.testing.assert_close(embedded, torch.cat([one, two], dim=-1))


def test_invertible_adapter_is_inverted_exactly():
    hidden, weights = torch.randn(B, T, D, dtype=torch.float64), random_weights(shapes_for("invertible"), B)
    weights = {name: tensor.double() for name, tensor in weights.items()}
    changed = couple(hidden, weights)
    assert (changed - hidden).abs().max() > 0.1
    torch.testing.assert_close(apply(*UNCOUPLED)(changed, weights), hidden, rtol=0, atol=1e-14)


def test_invertible_adapter_needs_a_width_that_halves_twice():
    with pytest.raises(BackboneError, match="not a multiple of 4"):
        BLOCKS["invertible"].tensors(BackboneShape("test", 18, SHAPE.sites, ()), 0)


def test_layer_norm_agrees_with_torch():
    hidden, gain, bias = torch.randn(B, T, D), torch.randn(D), torch.randn(D)
    expected = torch.nn.functional.layer_norm(hidden, (D,), gain, bias)
    per_row = layer_norm(hidden, gain.expand(B, D), bias.expand(B, D))
    torch.testing.assert_close(per_row, expected)
    coarse = torch.nn.functional.layer_norm(hidden, (D,), gain, bias, eps=0.5)
    assert torch.equal(layer_norm(hidden, gain, bias, eps=0.5), coarse)


def test_bank_gives_every_site_the_row_asked_for():
    bank = Bank("language", 4, num_sites=3, shapes={"down": (2, 5)}, init=normal_init(1.0))
    rows = torch.tensor([[0, 1, 2], [3, 3, 0]])
    found = bank(rows)["down"]
    for k in range(2):
        for s in range(3):
            assert torch.equal(found[k, s], bank.get_parameter("down")[rows[k, s], s])


def weight_of(table: GrowingEmbedding) -> Tensor:
    return table.get_parameter("weight")


def test_appended_rows_leave_the_others_bitwise_and_count_exactly():
    table = GrowingEmbedding("language", 3, size=4, init=normal_init(1.0))
    before = weight_of(table).detach().clone()
    for number in range(20):
        table.append()
        assert table.num_rows == 4 + number
        assert torch.equal(weight_of(table)[:3], before)
        assert sum(p.numel() for p in table.parameters()) == 4 * (4 + number)
    table.append(1)
    assert torch.equal(weight_of(table)[-1], before[1])
    table.append(torch.tensor([0, 2]))
    torch.testing.assert_close(weight_of(table)[-1], (before[0] + before[2]) / 2)
    assert len({row.sum().item() for row in weight_of(table)[:-2].detach()}) == 23, "fresh rows are fresh"


def test_a_grown_table_trains_saves_and_moves_like_any_other():
    table = GrowingEmbedding("language", 2, size=4, init=normal_init(1.0))
    table.append()
    table(torch.tensor([2])).sum().backward()
    gradient = weight_of(table).grad
    assert gradient is not None
    assert gradient.shape == (3, 4)
    table.append()
    assert weight_of(table).grad is None, "a gradient of the old shape would be wrong"
    table.to(torch.float64)
    table.append()
    assert weight_of(table).dtype == torch.float64
    assert table.state_dict()["weight"].shape == (5, 4)


def test_initializers_have_the_std_they_claim():
    matrix = torch.empty(3, 2, 200, 300)
    tensors = {**BLOCKS["bottleneck"].tensors(SHAPE, 6, norm="before"), **BLOCKS["lora"].tensors(SHAPE, 6)}
    xavier_init(tensors)("up", matrix)
    assert float(matrix.std()) == pytest.approx(xavier_std((200, 300)), rel=0.02)
    normal_init(0.02, tensors)("down", matrix)
    assert float(matrix.std()) == pytest.approx(0.02, rel=0.02)
    for name, value in (("down_bias", 0.0), ("norm_bias", 0.0), ("norm_weight", 1.0), ("q_up", 0.0)):
        xavier_init(tensors)(name, matrix)
        assert (matrix == value).all(), name


@pytest.mark.parametrize(
    ("kind", "norm"),
    [("bottleneck", "before"), ("bottleneck", "after"), ("lora", "before"), ("invertible", "before")],
)
def test_a_block_with_neutral_values_has_no_effect(kind, norm):
    tensors = BLOCKS[kind].tensors(SHAPE, 6, norm=norm)
    assert {name for name, spec in tensors.items() if spec.neutral is not None}
    random = random_weights(shapes_of(tensors), B)
    values: dict[str, float] = {n: spec.neutral for n, spec in tensors.items() if spec.neutral is not None}
    neutral = random | {name: torch.full_like(random[name], value) for name, value in values.items()}
    hidden = torch.randn(B, T, D)
    assert torch.equal(apply(kind, PLACES[kind])(hidden, neutral), hidden)
    for name in values:  # each of them is needed
        changed = apply(kind, PLACES[kind])(hidden, neutral | {name: random[name]})
        assert not torch.equal(changed, hidden) or kind == "lora"  # the other projection's, here


class Gain(BlockKind):
    """A kind that multiplies: it has no effect at one, and destroys everything at zero."""

    name = "gain"

    def tensors(self, shape: BackboneShape, size: int, *, norm: Norm = "none") -> TensorSpecs:
        return {"gain": TensorSpec((shape.width,), start=1.0, neutral=1.0)}

    def size_of(self, found: Shapes) -> int:
        return 0

    def apply(self, output_BTE: Tensor, input_BTD: Tensor, tensors: Mapping[str, Tensor], *, place: str) -> Tensor:
        return output_BTE * (tensors["gain"] if tensors["gain"].dim() == 1 else tensors["gain"][:, None])


@pytest.fixture
def gain():
    register_block(Gain())
    yield
    del BLOCKS["gain"]


@pytest.mark.parametrize("method", ["hyperx", "hyper-adapters", "madx", "lang-adapters"])
@pytest.mark.usefixtures("gain")
def test_a_kind_that_multiplies_starts_around_one_however_it_is_made(method):
    torch.manual_seed(0)
    backbone = tiny_backbone("bert").eval()
    built = Model(backbone, tiny_config(method, block="gain"), languages=LANGUAGES, tasks=["pos"]).eval()
    gains = built.method.weights(["pos/en", "pos/tr"]).blocks[0].tensors["gain"]
    assert float(gains.mean().detach()) == pytest.approx(1.0, abs=0.02)
    inputs = tiny_inputs("bert", 2)
    with torch.no_grad():
        plain, changed = backbone(**inputs).logits, built(inputs, ["pos/en", "pos/tr"]).logits
    assert float((changed - plain).abs().max()) < 0.1 * float(plain.abs().max())


@pytest.mark.usefixtures("gain")
def test_generated_blocks_can_start_without_effect_also_where_that_is_not_zero():
    heads = OutputProjections(8, tensors=BLOCKS["gain"].tensors(SHAPE, 0), rescale=True)
    heads.zero_init_up()
    assert torch.equal(heads(torch.randn(3, 2, 8))["gain"], torch.ones(3, 2, D))


def test_two_kinds_of_one_name_are_refused():
    with pytest.raises(PolyloomError, match="registered already"):
        register_block(BLOCKS["lora"])
