"""Write and read LoRA in the format of PEFT: ``adapter_config.json`` with ``adapter_model.safetensors``.

Polyloom's LoRA is PEFT's with ``lora_alpha = r``, a scaling of 1; another scaling is multiplied into the up projection.
"""

import re
from collections.abc import Mapping, Sequence
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
from polyloom.nn.blocks import BLOCKS, lora_names, lora_projections
from polyloom.tasks import Task, find_task
from polyloom.tasks.base import Head
from polyloom.weights import Block, Site, Weights

PREFIX = "base_model.model."
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
TASK_TYPES: dict[Head | None, str] = {"token-classification": "TOKEN_CLS", "sequence-classification": "SEQ_CLS"}
OTHER_HEADS = {"modernbert", "gemma3_text"}  # their token classifiers have a further layer, or there is none
# Transformers' sequence classifiers have a further layer. Only a layer with a ReLU can be neutralised.
SEQUENCE_HEADS = {"distilbert": ("pre_classifier", "classifier")}
# Settings that change the arithmetic; all others only matter in training.
PLAIN: dict[str, Any] = {
    "use_dora": False, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "bias": "none",
    "fan_in_fan_out": False, "layer_replication": None, "trainable_token_indices": None, "lora_bias": False,
    "alora_invocation_tokens": None, "megatron_config": None, "layers_to_transform": None,
}  # fmt: skip


def write_peft(adapter: Adapter, backbone: Backbone, into: Path) -> Path:
    """Write the LoRA of a condition, with its classifier where Transformers has one that computes the same."""
    _refuse(adapter, backbone.shape.family)
    block, task = joined(adapter.weights.blocks), find_task(adapter.condition.task)
    modules = projections(backbone)
    tensors: dict[str, Tensor] = {}
    adapted = lora_projections(block.tensors)
    for index, site in enumerate(block.sites):
        for name in adapted:
            for ours, peft_name in zip(lora_names(name), ("lora_A", "lora_B"), strict=True):
                tensors[f"{PREFIX}{modules[site, name]}.{peft_name}.weight"] = block.tensors[ours][0, index]
    rank = BLOCKS["lora"].size_of({name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()})
    config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": targets(backbone, adapted),
        "task_type": TASK_TYPES[task.export_head] if adapter.head else _task_type(backbone, task),
        "base_model_name_or_path": adapter.about.get("backbone", ""), "inference_mode": True,
    }  # fmt: skip
    if adapter.head:
        head = _head_tensors(adapter, backbone, task.export_head)
        config["modules_to_save"] = list(dict.fromkeys(name.rpartition(".")[0] for name in head))
        tensors |= {PREFIX + name: tensor for name, tensor in head.items()}
    return write_folder(into, {CONFIG: config, TENSORS: tensors})


def _task_type(backbone: Backbone, task: type[Task]) -> str | None:
    """Return PEFT's name for what the backbone's own head computes; it has none for masked language modelling."""
    known = {"AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM", "AutoModelForCausalLM": "CAUSAL_LM"}
    return known.get(backbone.family.auto_class) if task.uses_lm_head else None


def joined(blocks: Sequence[Block]) -> Block:
    """Join LoRAs that are stacked into one, whose rank is the sum of theirs: all read the same and add to the same.

    Where one of them does not act, it has zeros.
    """
    if len(blocks) == 1:
        return blocks[0]
    sites = max((block.sites for block in blocks), key=len)
    names = dict.fromkeys(name for block in blocks for name in block.tensors)
    wide = [{name: _at_sites(block, name, sites) for name in block.tensors} for block in blocks]
    tensors = {name: torch.cat([one[name] for one in wide], dim=-2 if name.endswith("_down") else -1) for name in names}
    return Block("lora", blocks[0].placement, sites, tensors)


def _at_sites(block: Block, name: str, sites: Sequence[Site]) -> Tensor:
    """Return a tensor of a block at sites, with zeros where the block does not act."""
    tensor = block.tensors[name]
    found = [tensor[:, block.sites.index(site)] if site in block.sites else tensor[:, 0] * 0.0 for site in sites]
    return torch.stack(found, dim=1)


def require_lora(adapter: Adapter, to: str) -> None:
    """Raise an error unless all blocks of an adapter are LoRA."""
    kinds = [block.kind for block in adapter.weights.blocks]
    if set(kinds) != {"lora"}:
        raise ExportError(
            f"{to}: only LoRA is exported, and {adapter.condition} has {', '.join(kinds) or 'no adapter'}. Train with "
            f"`block: lora`{' and `invertible: false`' if 'invertible' in kinds else ''}."
        )


def _refuse(adapter: Adapter, family: str) -> None:
    method, task = adapter.about.get("method", "the method"), adapter.condition.task
    require_lora(adapter, "peft")
    if adapter.needs_trained_backbone:
        raise ExportError(
            f"peft: {method} also trained parts of the backbone, such as {next(iter(adapter.backbone))}, which LoRA "
            "files cannot hold. Add --backbone: it also writes the trained backbone, which the LoRA then fits."
        )
    head = find_task(task).export_head
    known = head == "token-classification" and family not in OTHER_HEADS
    if adapter.head and not (known or (head == "sequence-classification" and family in SEQUENCE_HEADS)):
        raise ExportError(
            f"peft: Transformers has no head for {family} that computes what Polyloom's for {task} does. Export "
            "without --format, or to ONNX."
        )


def _head_tensors(adapter: Adapter, backbone: Backbone, head: Head | None) -> dict[str, Tensor]:
    """Name the tensors of a classifier as Transformers does.

    Before a sequence classifier there are a square layer and a ReLU. With ``[W; -W; 0]`` in that layer and ``[1, -1,
    0]`` in the classifier, the logits are those of ``W`` alone: ``relu(x) - relu(-x) = x``.
    """
    weight_ED, bias_E = (adapter.head[f"classifier.{part}"] for part in ("weight", "bias"))
    if head == "token-classification":
        name = _classifier_name(backbone)
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


def _classifier_name(backbone: Backbone) -> str:
    """Return Transformers' name of the linear token classifier."""
    return "score" if backbone.shape.stacks == ("decoder",) else "classifier"


def projections(backbone: Backbone) -> dict[tuple[Site, str], str]:
    """Name the modules of the linear layers that LoRA can adapt."""
    names = {module: name for name, module in backbone.model.named_modules()}
    return {
        (site, name): names[submodule(layer, path, backbone.shape.family)]
        for site, layer in zip(backbone.shape.sites, backbone.layers, strict=True)
        for name, path in backbone.projections.items()
    }


def targets(backbone: Backbone, names: Sequence[str]) -> list[str] | str:
    """Name the adapted modules as PEFT expects: by their last names if these name nothing else, else by a pattern."""
    adapted = {module for (_, name), module in projections(backbone).items() if name in names}
    last = sorted({module.rpartition(".")[2] for module in adapted})
    alike = {module for module, _ in backbone.model.named_modules() if module.rpartition(".")[2] in last}
    if alike == adapted:
        return last
    paths = "|".join(re.escape(backbone.projections[name]).replace(r"\-1", r"\d+") for name in names)
    return rf".*\.\d+\.({paths})"


def read_peft(folder: Path, condition: Condition, backbone: Backbone, *, labels: tuple[str, ...] = ()) -> Adapter:
    """Read a LoRA of linear layers that Polyloom can adapt; raise an error for anything else."""
    config = read_json(folder / CONFIG)
    scaling = _scaling(config, folder)
    tensors = read_safetensors(folder / TENSORS)
    shape, modules, left = backbone.shape, projections(backbone), set(tensors)
    stacked: dict[str, list[Tensor]] = {}
    adapted = dict.fromkeys(name for (_, name), one in modules.items() if f"{PREFIX}{one}.lora_A.weight" in tensors)
    for site in shape.sites:
        for name in adapted or shape.with_targets(None).projections:
            for ours, peft_name, factor in zip(lora_names(name), ("lora_A", "lora_B"), (1.0, scaling), strict=True):
                key = f"{PREFIX}{modules[site, name]}.{peft_name}.weight"
                if key not in tensors:
                    raise ExportError(
                        f"{folder}: {key} is missing. LoRA is read where it adapts {name} in every layer."
                    )
                left.discard(key)
                stacked.setdefault(ours, []).append(tensors[key] * factor)
    head: dict[str, Tensor] = {}
    kind = find_task(condition.task).export_head
    if kind == "token-classification":
        head = _head(tensors, left, _classifier_name(backbone), labels=labels, folder=folder)
    elif kind == "sequence-classification" and any("lora" not in name for name in tensors):
        raise ExportError(f"{folder}: sequence classifiers of Transformers have a layer that Polyloom's do not have.")
    if left:
        raise ExportError(f"{folder}: has tensors that cannot be used: {', '.join(sorted(left)[:4])}.")
    try:
        blocks = {name: torch.stack(layers)[None] for name, layers in stacked.items()}
    except RuntimeError as error:
        raise ExportError(f"{folder}: layers of different rank: {error}") from error
    about = {"method": "peft"}
    block = Block("lora", "projections", shape.sites, blocks)
    return Adapter(condition, Weights((block,)), labels=labels if head else (), head=head, about=about)


def _scaling(config: Mapping[str, Any], folder: Path) -> float:
    if config.get("peft_type") != "LORA":
        raise ExportError(f"{folder}: peft_type is {config.get('peft_type')!r}; only LORA can be read.")
    for key, value in PLAIN.items():
        if (config.get(key) or value) != value:
            raise ExportError(f"{folder}: {key} is {config[key]!r}; only {value!r} can be read.")
    rank, alpha = config.get("r"), config.get("lora_alpha", 8)
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise ExportError(f"{folder}: r is {rank!r} and lora_alpha {alpha!r}; both must be numbers.")
    return alpha / rank


def _head(
    tensors: Mapping[str, Tensor], left: set[str], name: str, *, labels: tuple[str, ...], folder: Path
) -> dict[str, Tensor]:
    keys = {f"classifier.{part}": f"{PREFIX}{name}.{part}" for part in ("weight", "bias")}
    if not labels and not any(key in tensors for key in keys.values()):
        return {}  # a LoRA without a head
    if not all(key in tensors for key in keys.values()):
        raise ExportError(f"{folder}: has no classifier (modules_to_save: {name}), so it cannot predict.")
    if len(labels) != len(tensors[keys["classifier.bias"]]):
        raise ExportError(
            f"{folder}: its classifier has {len(tensors[keys['classifier.bias']])} labels, whose names the file does "
            f"not hold. Name them in order (--labels NOUN,VERB,…); {len(labels)} are named."
        )
    left.difference_update(keys.values())
    return {ours: tensors[peft_name] for ours, peft_name in keys.items()}
