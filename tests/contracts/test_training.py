"""What learns is what was declared; recomputation, saving and copying change nothing."""

import copy

import pytest
import torch
from torch import Tensor

from polyloom.backbones import FAMILIES
from polyloom.checkpoint import load_checkpoint, save_checkpoint
from polyloom.methods import METHODS
from tests.contracts.tiny import (
    ROWS,
    covering_cases,
    logits,
    method_with,
    own_or_all,
    pairwise_cases,
    tiny_backbone,
    tiny_inputs,
    tiny_model,
)


@pytest.mark.parametrize("case", covering_cases())
def test_gradient_checkpointing_changes_nothing(case):
    """Bitwise, with dropout on, and with two forward passes of different rows before one backward pass."""
    method, family, settings = case
    model, inputs = tiny_model(method, family, backbone=tiny_backbone(family), **settings), tiny_inputs(family)
    model.train().requires_grad_(True)
    plain = two_passes(model, inputs)
    model.backbone.enable_gradient_checkpointing()
    recomputed = two_passes(model, inputs)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        assert torch.equal(gradient, recomputed[name]), name


def two_passes(model, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model.zero_grad()
    first = logits(model, inputs, ROWS)
    second = logits(model, inputs, ROWS[::-1])
    (first.square().mean() - second.square().mean()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", pairwise_cases())
def test_only_the_declared_groups_get_gradients(case):
    method, family, settings = case
    model, inputs = tiny_model(method, family, backbone=tiny_backbone(family), **settings), tiny_inputs(family)
    model.train()
    for stage in model.stages():
        model.set_stage(stage)
        model.zero_grad()
        ids = model.method.encode(ROWS)
        loss = logits(model, inputs, ids).square().mean()
        penalty = model.method.penalty(ids)
        (loss if penalty is None else loss + penalty).backward()
        declared = {id(p) for name, group in model.groups().items() if name in stage.trains for p in group}
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == (id(parameter) in declared), name
            moved = parameter.grad is not None and bool(parameter.grad.any())
            assert not moved or id(parameter) in declared, name
        for name, group in model.method.groups().items():
            if name in stage.trains:
                assert all(p.grad is not None for p in group), f"{name} is declared but out of reach"


@pytest.mark.parametrize("method", own_or_all(METHODS))
def test_groups_cover_every_parameter_once(method):
    model = tiny_model(method, "bert")
    groups = model.groups()
    parts = {id(p) for name in ("backbone.norms", "backbone.head") for p in groups.pop(name)}
    listed = [id(p) for group in groups.values() for p in group]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in model.parameters()}
    assert parts <= {id(p) for p in groups["backbone"]}


@pytest.mark.parametrize("case", covering_cases())
def test_saved_and_loaded_gives_the_same_bits(case, tmp_path):
    method, family, settings = case
    model, inputs = tiny_model(method, family, backbone=tiny_backbone(family), **settings), tiny_inputs(family)
    for name, group in model.groups().items():  # as if trained
        if any(name in stage.trains for stage in model.method.stages()):
            for parameter in group:
                parameter.data.add_(0.01)
    with torch.no_grad():
        before = logits(model, inputs, ROWS)
        loaded = load_checkpoint(save_checkpoint(model, tmp_path / "saved"), tiny_backbone(family)).eval()
        assert torch.equal(before, logits(loaded, inputs, ROWS))


@pytest.mark.parametrize("family", own_or_all(FAMILIES))
def test_a_copied_backbone_listens_for_itself(family):
    model, inputs = tiny_model(method_with("task", "language"), family), tiny_inputs(family)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        before = logits(model, inputs, ROWS)
        for parameter in copied.method.parameters():
            parameter.mul_(2.0)
        with model.backbone.using(model.weights(ROWS), num_rows=len(ROWS)):
            other = logits(copied, inputs, ROWS)
        assert not torch.equal(before, other)
        assert torch.equal(before, logits(model, inputs, ROWS))


@pytest.mark.parametrize("family", own_or_all(FAMILIES))
def test_recorded_hidden_states_show_the_adapters(family):
    model, inputs = tiny_model(method_with("language"), family), tiny_inputs(family)
    with torch.no_grad():
        adapted = model(inputs | {"output_hidden_states": True}, ROWS)
        bare = model.backbone(**inputs, output_hidden_states=True)
    key = "decoder_hidden_states" if "decoder_hidden_states" in bare else "hidden_states"
    assert torch.equal(adapted[key][0], bare[key][0])
    assert not torch.allclose(adapted[key][1], bare[key][1]), "the first layer's adapter is recorded"
