"""Functions that take one set of weights or one per row give each row the same."""

import pytest
import torch
from torch import Tensor

from polyloom.errors import BackboneError
from polyloom.nn.bottleneck import bottleneck, bottleneck_shapes
from polyloom.nn.invertible import couple, invertible_shapes, uncouple
from polyloom.nn.linear import layer_norm, linear
from polyloom.nn.lora import lora, lora_shapes
from polyloom.nn.tables import Bank, GrowingEmbedding, normal_init, xavier_init, xavier_std

B, T, D = 5, 7, 16


def random_weights(shapes, rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(rows, *shape, generator=generator) * 0.3 for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (bottleneck, bottleneck_shapes(D, 6, norm=False)),
        (bottleneck, bottleneck_shapes(D, 6, norm=True)),
        (lambda x, w: lora(x, w, projection="query"), lora_shapes({"query": (D, 12)}, 3)),
        (couple, invertible_shapes(D)),
        (uncouple, invertible_shapes(D)),
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


def test_invertible_adapter_is_inverted_exactly():
    hidden, weights = torch.randn(B, T, D, dtype=torch.float64), random_weights(invertible_shapes(D), B)
    weights = {name: tensor.double() for name, tensor in weights.items()}
    changed = couple(hidden, weights)
    assert (changed - hidden).abs().max() > 0.1
    torch.testing.assert_close(uncouple(changed, weights), hidden, rtol=0, atol=1e-14)


def test_invertible_adapter_needs_a_width_that_halves_twice():
    with pytest.raises(BackboneError, match="not a multiple of 4"):
        invertible_shapes(18)


def test_layer_norm_agrees_with_torch():
    hidden, gain, bias = torch.randn(B, T, D), torch.randn(D), torch.randn(D)
    expected = torch.nn.functional.layer_norm(hidden, (D,), gain, bias)
    per_row = layer_norm(hidden, gain.expand(B, D), bias.expand(B, D))
    torch.testing.assert_close(per_row, expected)


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
    xavier_init()("up", matrix)
    assert float(matrix.std()) == pytest.approx(xavier_std((200, 300)), rel=0.02)
    normal_init(0.02)("down", matrix)
    assert float(matrix.std()) == pytest.approx(0.02, rel=0.02)
    for name, value in (("down_bias", 0.0), ("norm_bias", 0.0), ("norm_weight", 1.0), ("query_up", 0.0)):
        xavier_init()(name, matrix)
        assert (matrix == value).all(), name
