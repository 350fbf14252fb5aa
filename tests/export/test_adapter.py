"""An exported adapter answers bit for bit as the method that made it, and fits only its backbone."""

import pytest
import torch

from polyloom.conditions import Condition
from polyloom.export.adapter import Adapter, generate_adapters, load_adapters_into, read_adapter, write_adapter
from tests.contracts.tiny import ROWS, covering_cases, logits, tiny_backbone, tiny_inputs, tiny_model

CONDITIONS = [Condition.parse(row) for row in dict.fromkeys(ROWS)]


@pytest.mark.parametrize("case", covering_cases())
def test_what_is_exported_answers_bitwise_as_what_made_it(case, tmp_path):
    method, family, settings = case
    model, inputs = tiny_model(method, family, **settings), tiny_inputs(family)
    adapters: list[Adapter] = []
    for adapter in generate_adapters(model, CONDITIONS):
        adapters.append(read_adapter(write_adapter(adapter, tmp_path / str(len(adapters)))))
        alone, same = load_adapters_into(adapters[-1:], tiny_backbone(family)), [adapter.condition] * len(ROWS)
        with torch.no_grad():
            assert torch.equal(logits(model, inputs, same), logits(alone, inputs, same))
    together = load_adapters_into(adapters, tiny_backbone(family))
    with torch.no_grad():  # weights of several conditions, made together, may differ in their last bit
        torch.testing.assert_close(logits(model, inputs, ROWS), logits(together, inputs, ROWS), atol=1e-5, rtol=1e-5)
