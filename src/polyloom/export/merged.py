"""Write the LoRA of a condition merged into its backbone: an ordinary model of Transformers that needs no adapter."""

from pathlib import Path

import torch
from torch import Tensor

from polyloom.backbones import Backbone
from polyloom.errors import ExportError
from polyloom.export.adapter import Adapter
from polyloom.export.peft import join_lora, linear_modules, require_lora
from polyloom.nn.blocks import LORA, lora_names


@torch.no_grad()
def write_merged(adapter: Adapter, backbone: Backbone, into: Path) -> Path:
    """Write the backbone with ``W + up · down`` for each adapted matrix, and all that was trained in it.

    Transformers has no head for what our classifiers and parsers compute, so the task must use the backbone's own.
    """
    require_lora(adapter, "merged")
    if not adapter.task.uses_lm_head:
        raise ExportError(
            f"merged: {adapter.condition.task} has a head of its own, which a model of Transformers does not have. "
            "Export with --format peft or --format onnx-baked."
        )
    block, modules = join_lora(adapter.weights.blocks), linear_modules(backbone)
    state: dict[str, Tensor] = dict(backbone.model.state_dict())  # the entries are replaced, the model stays as it is
    for name in LORA.projections(block.tensors):
        down, up = (block.tensors[part][0] for part in lora_names(name))
        for index, site in enumerate(block.sites):
            key = f"{modules[site, name]}.weight"
            weight = state[key]
            # In float32, so that a product in bf16 is rounded once, with the weight that it is added to.
            state[key] = (weight.float() + up[index].float() @ down[index].float()).to(weight.dtype)
    backbone.model.save_pretrained(into, state_dict=state)
    return into
