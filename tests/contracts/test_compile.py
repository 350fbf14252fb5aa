"""torch.compile: one graph for all conditions, no break, no recompilation."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from tests.contracts.tiny import ROWS, case_id, cases, logits, tiny_inputs, tiny_model


def mixtures(model):
    """Batches of five rows with different conditions in different orders, all distinct."""
    listed = list(dict.fromkeys(ROWS))
    return [model.method.encode(listed[i:] + listed[:i])._asdict() for i in range(4)]


@pytest.mark.parametrize("case", cases(), ids=case_id)
def test_one_graph_serves_many_conditions(case):
    method, family, settings = case
    model = tiny_model(method, family, **settings)
    check(model, tiny_inputs(family, num_rows=6), CompileCounter(), tolerance=0.0)


@pytest.mark.parametrize("case", [("madx", "bert"), ("hyper-adapters", "m2m_100")])
def test_inductor_serves_many_conditions_with_one_graph(case):
    model = tiny_model(*case)
    check(model, tiny_inputs(case[1], num_rows=6), CompileCounterWithBackend("inductor"), tolerance=1e-5)


def check(model, inputs, counter, *, tolerance: float) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    from polyloom.types import ConditionIds

    for columns in mixtures(model):
        ids = ConditionIds(**columns)
        with torch.no_grad():
            expected = logits(model, inputs, ids)
            actual = compiled(inputs, ids).logits
        if any(block.kind == "classifier" for block in model.weights(ids).blocks):
            continue  # generated classifiers act after the backbone
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    assert counter.frame_count == 1
