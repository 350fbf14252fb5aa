"""Write and read LoRA in the format of PEFT: ``adapter_config.json`` with ``adapter_model.safetensors``.

PEFT adds ``lora_alpha / r · B A x``. Ours has no such factor: it is written as 1 and multiplied into B when read.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyloom.backbones import Backbone
from polyloom.backbones.backbone import submodule
from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.adapter import Adapter
from polyloom.export.storage import read_json, read_safetensors, write_folder
from polyloom.nn.blocks import LORA, lora_names
from polyloom.tasks import find_task
from polyloom.tasks.base import Head
from polyloom.weights import Block, Site, Weights

PREFIX = "base_model.model."
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
HEAD_TASKS: dict[Head | None, str] = {"token-classification": "TOKEN_CLS", "sequence-classification": "SEQ_CLS"}
# PEFT has no type for masked language models, and needs none: the type only chooses the class that wraps the model.
MODEL_TASKS = {"AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM", "AutoModelForCausalLM": "CAUSAL_LM"}
OTHER_HEADS = {"modernbert", "gemma3_text"}  # their token classifiers have a further layer, or there is none
# Transformers' sequence classifiers have a further layer. Only a layer with a ReLU can be neutralised.
SEQUENCE_HEADS = {"distilbert": ("pre_classifier", "classifier")}
# Settings that change the arithmetic, with the values that leave it as ours is; all others only matter in training.
PLAIN: dict[str, Any] = {
    "use_dora": False, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "bias": "none",
    "fan_in_fan_out": False, "layer_replication": None, "trainable_token_indices": None, "lora_bias": False,
    "alora_invocation_tokens": None, "megatron_config": None, "layers_to_transform": None,
}  # fmt: skip


def write_peft(adapter: Adapter, backbone: Backbone, into: Path) -> Path:
    """Write the LoRA of a condition, with its classifier where Transformers has one that computes the same."""
    require_lora(adapter, "peft")
    adapter.require_frozen_backbone("peft")
    family, head = backbone.shape.family, adapter.task.export_head
    has_token_head = head == "token-classification" and family not in OTHER_HEADS
    has_sequence_head = head == "sequence-classification" and family in SEQUENCE_HEADS
    if adapter.head and not (has_token_head or has_sequence_head):
        raise ExportError(
            f"peft: Transformers has no head for {family} that computes what Polyloom's for {adapter.condition.task} "
            "does. Export without --format, or to ONNX."
        )

    block, modules = join_lora(adapter.weights.blocks), linear_modules(backbone)
    names = LORA.projections(block.tensors)
    tensors: dict[str, Tensor] = {}
    for index, site in enumerate(block.sites):
        for name in names:
            for ours, theirs in zip(lora_names(name), ("lora_A", "lora_B"), strict=True):
                tensors[f"{PREFIX}{modules[site, name]}.{theirs}.weight"] = block.tensors[ours][0, index]

    # PEFT adapts every module whose last name is given. Where other modules have that name too, such as the `dense` of
    # BERT's head, it gets a pattern of the whole path: it would adapt them as well, with weights that no file has.
    adapted = {module for (_, name), module in modules.items() if name in names}
    targets: list[str] | str = sorted({module.rpartition(".")[2] for module in adapted})
    if {m for m, _ in backbone.model.named_modules() if m.rpartition(".")[2] in targets} != adapted:
        paths = "|".join(re.escape(backbone.projections[name]).replace(r"\-1", r"\d+") for name in names)
        targets = rf".*\.\d+\.({paths})"

    rank = LORA.size_of({name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()})
    lm_task = MODEL_TASKS.get(backbone.family.auto_class) if adapter.task.uses_lm_head else None
    config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": targets, "task_type": HEAD_TASKS[head] if adapter.head else lm_task,
        "base_model_name_or_path": adapter.about.get("backbone", ""), "inference_mode": True,
    }  # fmt: skip
    if adapter.head:
        classifier = _classifier(adapter, backbone)
        config["modules_to_save"] = list(dict.fromkeys(name.rpartition(".")[0] for name in classifier))
        tensors |= {PREFIX + name: tensor for name, tensor in classifier.items()}
    return write_folder(into, {CONFIG: config, TENSORS: tensors})


def require_lora(adapter: Adapter, file_format: str) -> None:
    """Raise an error unless all blocks of an adapter are LoRA."""
    kinds = [block.kind for block in adapter.weights.blocks]
    if set(kinds) != {"lora"}:
        raise ExportError(
            f"{file_format}: only LoRA is exported, and {adapter.condition} has {', '.join(kinds) or 'no adapter'}. "
            f"Train with `block: lora`{' and `invertible: false`' if 'invertible' in kinds else ''}."
        )


def join_lora(blocks: Sequence[Block]) -> Block:
    """Join LoRAs that are stacked into one whose rank is the sum of theirs.

    All read the same input and add to the same output: ``B₁A₁ + B₂A₂ = [B₁ B₂] [A₁; A₂]``. A block that does not act at
    a site, such as one without the last layer, has zeros there.
    """
    if len(blocks) == 1:
        return blocks[0]
    sites = max((block.sites for block in blocks), key=len)
    tensors = {}
    for name in dict.fromkeys(name for block in blocks for name in block.tensors):
        parts = []
        for block in blocks:
            tensor = block.tensors[name]  # [K, S, …]
            rows = [tensor[:, block.sites.index(s)] if s in block.sites else 0.0 * tensor[:, 0] for s in sites]
            parts.append(torch.stack(rows, dim=1))
        tensors[name] = torch.cat(parts, dim=-2 if name.endswith("_down") else -1)  # the dimension of the rank
    return Block("lora", blocks[0].placement, sites, tensors)


def linear_modules(backbone: Backbone) -> dict[tuple[Site, str], str]:
    """Name the modules of the linear layers that LoRA can adapt, as Transformers does."""
    names = {module: name for name, module in backbone.model.named_modules()}
    return {
        (site, name): names[submodule(layer, path, backbone.shape.family)]
        for site, layer in zip(backbone.shape.sites, backbone.layers, strict=True)
        for name, path in backbone.projections.items()
    }


def _token_classifier(backbone: Backbone) -> str:
    """Return Transformers' name of the linear token classifier."""
    return "score" if backbone.shape.stacks == ("decoder",) else "classifier"


def _classifier(adapter: Adapter, backbone: Backbone) -> dict[str, Tensor]:
    """Name the tensors of a classifier as Transformers does.

    Before a sequence classifier there are a square layer and a ReLU. With ``[W; -W; 0]`` in that layer and ``[1, -1,
    0]`` in the classifier, the logits are those of ``W`` alone: ``relu(x) - relu(-x) = x``.
    """
    weight_ED, bias_E = (adapter.head[f"classifier.{part}"] for part in ("weight", "bias"))
    if adapter.task.export_head == "token-classification":
        name = _token_classifier(backbone)
        return {f"{name}.weight": weight_ED, f"{name}.bias": bias_E}
    inner, outer = SEQUENCE_HEADS[backbone.shape.family]
    count, width = weight_ED.shape
    if 2 * count > width:
        raise ExportError(f"peft: {count} labels; at most {width // 2} fit into Transformers' classifier.")
    square_DD, signs_ED = weight_ED.new_zeros(width, width), weight_ED.new_zeros(count, width)
    square_DD[:count], square_DD[count : 2 * count] = weight_ED, -weight_ED
    signs_ED[:, :count], signs_ED[:, count : 2 * count] = torch.eye(count), -torch.eye(count)
    named = {f"{inner}.weight": square_DD, f"{inner}.bias": weight_ED.new_zeros(width)}
    return named | {f"{outer}.weight": signs_ED, f"{outer}.bias": bias_E}


# -- reading ----------------------------------------------------------------------------------------------------------


def read_peft(folder: Path, condition: Condition, backbone: Backbone, *, labels: tuple[str, ...] = ()) -> Adapter:
    """Read a LoRA of linear layers that Polyloom can adapt; raise an error for anything else.

    Args:
        folder: The adapter.
        condition: The condition that it is for.
        backbone: The backbone that it is for.
        labels: Names of the classifier's labels in order; the format does not have them.
    """
    scaling = _read_scaling(folder)

    # Every tensor of the file must be used, and every layer of an adapted projection must be there: a LoRA that is read
    # in part predicts something, and nobody sees that it is wrong.
    tensors = read_safetensors(folder / TENSORS)
    shape, modules, unused = backbone.shape, linear_modules(backbone), set(tensors)
    names = dict.fromkeys(name for (_, name), m in modules.items() if f"{PREFIX}{m}.lora_A.weight" in tensors)
    stacked: dict[str, list[Tensor]] = {}
    for site in shape.sites:
        for name in names or LORA.restrict(shape, None).projections:
            for ours, theirs, factor in zip(lora_names(name), ("lora_A", "lora_B"), (1.0, scaling), strict=True):
                key = f"{PREFIX}{modules[site, name]}.{theirs}.weight"
                if key not in tensors:
                    raise ExportError(
                        f"{folder}: {key} is missing. LoRA is read where it adapts {name} in every layer."
                    )
                unused.discard(key)
                stacked.setdefault(ours, []).append(tensors[key] * factor)

    head: dict[str, Tensor] = {}
    kind = find_task(condition.task).export_head
    if kind == "token-classification":
        name = _token_classifier(backbone)
        keys = {f"classifier.{part}": f"{PREFIX}{name}.{part}" for part in ("weight", "bias")}
        if labels or any(key in tensors for key in keys.values()):  # else it is a LoRA without a head
            if not all(key in tensors for key in keys.values()):
                raise ExportError(f"{folder}: has no classifier (modules_to_save: {name}), so it cannot predict.")
            head = {ours: tensors[key] for ours, key in keys.items()}
            unused.difference_update(keys.values())
            if len(labels) != len(head["classifier.bias"]):
                raise ExportError(
                    f"{folder}: its classifier has {len(head['classifier.bias'])} labels, whose names the file does "
                    f"not hold. Name them in order (--labels NOUN,VERB,…); {len(labels)} are named."
                )
    elif kind == "sequence-classification" and any("lora" not in name for name in tensors):
        raise ExportError(f"{folder}: sequence classifiers of Transformers have a layer that Polyloom's do not have.")
    if unused:
        raise ExportError(f"{folder}: has tensors that cannot be used: {', '.join(sorted(unused)[:4])}.")

    try:
        blocks = {name: torch.stack(layers)[None] for name, layers in stacked.items()}
    except RuntimeError as error:
        raise ExportError(f"{folder}: layers of different rank: {error}") from error
    weights = Weights((Block("lora", "projections", shape.sites, blocks),))
    return Adapter(condition, weights, labels=labels if head else (), head=head, about={"method": "peft"})


def _read_scaling(folder: Path) -> float:
    """Read the factor of the up projection; raise an error for settings that compute something else than LoRA."""
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise ExportError(f"{folder}: peft_type is {config.get('peft_type')!r}; only LORA can be read.")
    for key, value in PLAIN.items():
        if (config.get(key) or value) != value:
            raise ExportError(f"{folder}: {key} is {config[key]!r}; only {value!r} can be read.")
    rank, alpha = config.get("r"), config.get("lora_alpha", 8)
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ExportError(f"{folder}: r is {rank!r} and lora_alpha {alpha!r}; both must be numbers.")
    return alpha / rank
