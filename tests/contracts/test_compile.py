"""torch.compile: one graph for all conditions, no break, no recompilation."""

from collections.abc import Hashable

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from polyloom.backbones import FAMILIES
from tests.contracts.tiny import (
    ROWS,
    block_of,
    case_id,
    cases,
    method_with,
    shared_backbone,
    tiny_inputs,
    tiny_model,
)
from tests.covering import Case, covering


def mixtures(model):
    """Batches of six rows: the same six conditions in different orders."""
    listed = list(dict.fromkeys(ROWS))
    return [model.method.encode(listed[i:] + listed[:i]) for i in range(4)]


def traced(case: Case) -> set[Hashable]:
    """What makes another graph: the block, and the stacks of the family."""
    return {block_of(case), tuple(FAMILIES[case[1]].stacks)}


@pytest.mark.parametrize("case", covering(cases(), traced, name=case_id))
def test_one_graph_serves_many_conditions(case):
    method, family, settings = case
    # Tracing time grows with layers, and the graph of a second layer is the graph of the first.
    model = tiny_model(method, family, backbone=shared_backbone(family, shallow=True), **settings)
    check(model, tiny_inputs(family, num_rows=6), CompileCounter(), tolerance=0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [(method_with("task", "language"), "bert"), (method_with("language"), "m2m_100")])
def test_inductor_serves_many_conditions_with_one_graph(case):
    model = tiny_model(*case)
    check(model, tiny_inputs(case[1], num_rows=6), CompileCounterWithBackend("inductor"), tolerance=1e-5)


def check(model, inputs, counter, *, tolerance: float) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for ids in mixtures(model):
        with torch.no_grad():
            expected, actual = model(inputs, ids).logits, compiled(inputs, ids).logits
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    assert counter.frame_count == 1


def test_other_numbers_of_conditions_cost_one_more_graph_and_a_single_one_another():
    """torch specialises on what it sees first, then generalises; a shared set of weights is a simpler graph."""
    model, inputs = tiny_model(method_with("task", "language"), "bert"), tiny_inputs("bert", num_rows=6)
    listed, counter = list(dict.fromkeys(ROWS)), CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for distinct, graphs in ((6, 1), (4, 2), (3, 2), (5, 2), (2, 2), (1, 3), (6, 3), (1, 3)):
        ids = model.method.encode([listed[i % distinct] for i in range(6)])
        with torch.no_grad():
            torch.testing.assert_close(compiled(inputs, ids).logits, model(inputs, ids).logits, rtol=0, atol=1e-6)
        assert counter.frame_count == graphs
