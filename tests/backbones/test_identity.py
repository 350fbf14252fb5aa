"""The identity of a backbone covers what decides its output: parameters, buffers, configuration; and nothing else."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polyloom.backbones import FAMILIES, Backbone, backbone_from_config, identity_of, load_backbone
from polyloom.checkpoint import load_checkpoint, save_checkpoint
from polyloom.errors import CheckpointError
from tests.contracts.tiny import config_of, has_two_stacks, tiny_backbone, tiny_inputs, tiny_model

HEADS = ("num_attention_heads", "n_heads", "encoder_attention_heads", "num_heads")
ACTIVATIONS = ("hidden_act", "activation", "activation_function", "feed_forward_proj", "hidden_activation")
EPSILONS = ("layer_norm_eps", "norm_eps", "layer_norm_epsilon", "rms_norm_eps")
NO_EPSILON = {"m2m_100", "mbart", "marian", "distilbert"}  # it is fixed in their code
SIZES_THE_HEADS = {"llama", "qwen3", "gemma2", "gemma3_text", "qwen2", "t5", "mt5"}  # heads change shapes there


def changed(backbone: Backbone, family: str, keys: tuple[str, ...], value: Any) -> Backbone:
    """The same parameters and buffers with another configuration."""
    defaults = backbone.model.config.to_dict()
    key = next(key for key in keys if key in defaults)
    assert defaults[key] != value
    other = backbone_from_config({"model_type": family} | config_of(family) | {key: value})
    other.model.load_state_dict(backbone.model.state_dict())
    return other


@torch.no_grad()
def output(backbone: Backbone, family: str) -> Tensor:
    logits: Tensor = backbone(**tiny_inputs(family)).logits
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_change_that_changes_the_output_changes_the_identity(family):
    backbone = tiny_backbone(family)
    before, answered = identity_of(backbone), output(backbone, family)
    settings: list[tuple[tuple[str, ...], Any]] = [(ACTIVATIONS, "gated-tanh" if family == "mt5" else "tanh")]
    settings += [] if family in SIZES_THE_HEADS else [(HEADS, 4)]
    settings += [] if family in NO_EPSILON else [(EPSILONS, 0.3)]
    for keys, value in settings:
        other = changed(backbone, family, keys, value)
        assert not torch.allclose(output(other, family), answered, equal_nan=True), keys
        after = identity_of(other)
        assert after["frozen_sha256"] == before["frozen_sha256"], "the hash of the parameters does not see it"
        assert after != before, keys


@pytest.mark.parametrize("family", FAMILIES)
def test_a_changed_buffer_changes_the_identity(family):
    backbone = tiny_backbone(family)
    saved = backbone.model.state_dict().keys()
    if not any(name in saved for name, _ in backbone.model.named_buffers()):
        backbone.model.register_buffer("scale", torch.zeros(3))
    before = identity_of(backbone)
    assert ("final_logits_bias" in dict(backbone.model.named_buffers())) == (family in ("mbart", "marian"))
    for name, buffer in backbone.model.named_buffers():
        if name in backbone.model.state_dict():
            buffer.flatten()[-1:] += 1
            after = identity_of(backbone)
            assert after != before, name
            assert after["frozen_sha256"] == before["frozen_sha256"], "the hash of the parameters does not see it"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_backbone_has_the_same_identity_and_in_another_dtype_another(family, tmp_path):
    backbone = tiny_backbone(family)
    backbone.model.save_pretrained(tmp_path / "one")
    loaded = load_backbone(tmp_path / "one")
    assert identity_of(loaded) == identity_of(backbone)
    loaded.model.config.id2label = {0: "x"}
    loaded.model.save_pretrained(tmp_path / "two")
    assert identity_of(load_backbone(tmp_path / "two")) == identity_of(backbone)
    assert identity_of(load_backbone(tmp_path / "two", dtype=torch.bfloat16)) != identity_of(backbone)


@pytest.mark.parametrize("family", [name for name in FAMILIES if has_two_stacks(name)])
def test_settings_of_generation_are_part_of_the_identity(family, tmp_path):
    backbone = tiny_backbone(family)
    before = identity_of(backbone)
    backbone.model.generation_config.max_length = None  # every row has its own limit
    assert identity_of(backbone) == before
    backbone.model.generation_config.repetition_penalty = 1.5
    assert identity_of(backbone) != before
    backbone.model.save_pretrained(tmp_path / "one")
    assert identity_of(load_backbone(tmp_path / "one")) == identity_of(backbone)


def test_a_checkpoint_refuses_the_same_parameters_in_another_configuration(tmp_path):
    model = tiny_model("madx", "bert", backbone=tiny_backbone("bert"))
    saved = save_checkpoint(model, tmp_path / "saved")
    load_checkpoint(saved, tiny_backbone("bert"))
    other = changed(tiny_backbone("bert"), "bert", HEADS, 4)
    with pytest.raises(
        CheckpointError, match=r"was trained on another backbone .*; this one has another configuration"
    ):
        load_checkpoint(saved, other)
