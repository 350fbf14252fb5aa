"""Write and read adapters in the format of AdapterHub's `adapters` library.

One directory per adapter: ``adapter_config.json`` with ``adapter.safetensors``, for a head ``head_config.json`` with
``model_head.safetensors``. A stack of language and task adapter is two directories. Pickles are neither written nor
read: load with ``use_safetensors=True``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyloom.conditions import Condition
from polyloom.errors import ExportError, suggest
from polyloom.export.adapter import Adapter
from polyloom.export.storage import read_json, read_safetensors, write_folder
from polyloom.nn.blocks import BLOCKS
from polyloom.tasks import find_task
from polyloom.tasks.base import Head
from polyloom.weights import BackboneShape, Block, Site, Weights

VERSION = "adapters.1.3.0"  # version of the format; without it, the library reads files as an older format


class Form(NamedTuple):
    """Names that the library uses in one model family."""

    model_class: str
    site: str
    embedding: str
    post_norm: bool = True


def _bert(prefix: str, model_class: str) -> Form:
    return Form(model_class, f"{prefix}.encoder.layer.{{layer}}.output", f"{prefix}")


def _t5(model_class: str) -> Form:
    return Form(model_class, "transformer.{stack}.block.{layer}.layer.{last}", "transformer.encoder", post_norm=False)


FORMS = {
    "bert": _bert("bert", "BertAdapterModel"),
    "roberta": _bert("roberta", "RobertaAdapterModel"),
    "xlm-roberta": _bert("roberta", "XLMRobertaAdapterModel"),
    "deberta-v2": _bert("deberta", "DebertaV2AdapterModel"),
    "distilbert": Form("DistilBertAdapterModel", "distilbert.transformer.layer.{layer}.output_adapters", "distilbert"),
    "mbart": Form(
        "MBartAdapterModel", "model.{stack}.layers.{layer}.output_adapters", "model.encoder", post_norm=False
    ),
    "t5": _t5("T5AdapterModel"),
    "mt5": _t5("MT5AdapterModel"),
    "llama": Form("LlamaAdapterModel", "model.layers.{layer}.output_adapters", "model", post_norm=False),
}
# The library's settings of a placement: whether the layer's norm comes before and after, where the residual is taken.
PLACEMENTS: dict[tuple[str, bool], dict[str, bool]] = {
    ("norm", True): {"original_ln_before": True, "residual_before_ln": True, "original_ln_after": True},
    ("output", True): {"original_ln_before": False, "residual_before_ln": True, "original_ln_after": True},
    ("output", False): {"original_ln_before": False, "residual_before_ln": True, "original_ln_after": True},
    ("layer", True): {"original_ln_before": True, "residual_before_ln": False, "original_ln_after": False},
    ("layer", False): {"original_ln_before": True, "residual_before_ln": True, "original_ln_after": True},
}
BOTTLENECK = {
    "down": "adapter_down.{linear}.weight", "down_bias": "adapter_down.{linear}.bias",
    "up": "adapter_up.weight", "up_bias": "adapter_up.bias",
    "norm_weight": "adapter_norm_before.weight", "norm_bias": "adapter_norm_before.bias",
    "out_norm_weight": "adapter_norm_after.weight", "out_norm_bias": "adapter_norm_after.bias",
}  # fmt: skip
INVERTIBLE = {
    f"{net.lower()}_{part}{bias}": f"{net}.{index}.{'bias' if bias else 'weight'}"
    for net in "FG"
    for part, index in {"in": 0, "out": 2}.items()
    for bias in ("", "_bias")
}
HEADS: dict[Head | None, str] = {"token-classification": "tagging", "sequence-classification": "classification"}
FIXED: dict[str, Any] = {
    "mh_adapter": False, "output_adapter": True, "cross_adapter": False, "non_linearity": "relu", "is_parallel": False,
    "adapter_residual_before_ln": False, "scaling": 1.0, "use_gating": False, "dropout": 0.0,
    "phm_layer": False, "stochastic_depth": 0.0,
}  # fmt: skip


def form_of(family: str) -> Form:
    """Return the names that the library uses in a family, or raise an error if it does not support the family."""
    if family not in FORMS:
        raise ExportError(f"adapterhub: the `adapters` library has no {family}. {suggest(family, FORMS)}")
    return FORMS[family]


def write_adapterhub(adapter: Adapter, shape: BackboneShape, into: Path) -> list[Path]:
    """Write an adapter, or a stack of two, with the head beside the last one; return the directories in order."""
    form = form_of(shape.family)
    blocks = {kind: [b for b in adapter.weights.blocks if b.kind == kind] for kind in ("bottleneck", "invertible")}
    bottlenecks, invertible = blocks["bottleneck"], blocks["invertible"]
    _refuse(adapter, bottlenecks, form, shape)
    condition = adapter.condition
    names = (
        ["-".join(str(condition).split("/"))]
        if len(bottlenecks) == 1
        else ["-".join(condition.languages), condition.task]
    )
    folders = []
    for number, (name, block) in enumerate(zip(names, bottlenecks, strict=True)):
        config = FIXED | PLACEMENTS[block.placement, form.post_norm] | _sizes(block, shape)
        tensors = dict(_named(block, name, form))
        if number == 0 and invertible:
            config |= {"inv_adapter": "nice", "inv_adapter_reduction_factor": 2}
            tensors |= _named_invertible(invertible[0], name, form)
        about = {
            "hidden_size": shape.width, "model_class": form.model_class, "model_type": shape.family, "name": name,
            "model_name": adapter.about.get("backbone", ""), "version": VERSION,
        }  # fmt: skip
        files: dict[str, Any] = {"adapter_config.json": {"config": config} | about, "adapter.safetensors": tensors}
        if number == len(names) - 1 and adapter.head:
            files |= _head_files(adapter, name, about)
        folders.append(write_folder(into if len(names) == 1 else into / name, files))
    return folders


def _refuse(adapter: Adapter, bottlenecks: list[Block], form: Form, shape: BackboneShape) -> None:
    """Raise an error for an adapter that the format cannot hold."""
    method = adapter.about.get("method", "the method")
    if adapter.needs_trained_backbone:
        raise ExportError(
            f"adapterhub: {method} also trained parts of the backbone, such as {next(iter(adapter.backbone))}, which "
            "this format cannot hold. Add --backbone: it also writes the trained backbone, which the adapters then fit."
        )
    kinds = {block.kind for block in adapter.weights.blocks}
    if not bottlenecks or not kinds <= {"bottleneck", "invertible"}:
        what = ", ".join(sorted(kinds)) or "no adapter"
        raise ExportError(
            f"adapterhub: {adapter.condition} has {what}; bottlenecks are exchanged here. LoRA: --format peft."
        )
    if len(bottlenecks) > 1 and form.post_norm and bottlenecks[0].placement == "layer":
        raise ExportError(
            "adapterhub: stacks after the whole layer cannot be expressed there. Train with placement: norm."
        )
    task = adapter.condition.task
    if not adapter.head:
        return
    head = find_task(task).export_head
    if head not in HEADS:
        raise ExportError(
            f"adapterhub: no head there computes what Polyloom's head for {task} does. Export without --format."
        )
    if head == "sequence-classification" and shape.stacks != ("encoder",):
        raise ExportError(
            f"adapterhub: its classification head for {shape.family} reads the last token, Polyloom's for {task} the "
            "first. Export without --format."
        )


def _sizes(block: Block, shape: BackboneShape) -> dict[str, Any]:
    size = BLOCKS["bottleneck"].size_of({name: tuple(tensor.shape[2:]) for name, tensor in block.tensors.items()})
    # The library computes the size as int(width // factor).
    factor = shape.width // size if shape.width % size == 0 else shape.width / (size + 0.5)
    left = [number for number, site in enumerate(shape.sites) if site not in block.sites]
    return {
        "reduction_factor": factor,
        "leave_out": left,
        "ln_before": BLOCKS["bottleneck"].norm_of(block.tensors) == "before",
        "ln_after": BLOCKS["bottleneck"].norm_of(block.tensors) == "after",
        "inv_adapter": None,
    }


def _place(site: Site, form: Form) -> str:
    return form.site.format(stack=site.stack, layer=site.layer, last=1 if site.stack == "encoder" else 2)


def _named(block: Block, name: str, form: Form) -> Iterator[tuple[str, Tensor]]:
    before = BLOCKS["bottleneck"].norm_of(block.tensors) == "before"
    for index, site in enumerate(block.sites):
        prefix = f"{_place(site, form)}.adapters.{name}."
        for ours, tensor in block.tensors.items():
            yield prefix + BOTTLENECK[ours].format(linear=int(before)), tensor[0, index]
            if ours.startswith("norm_"):  # the library has two names for this norm
                yield f"{prefix}adapter_down.0.{ours.removeprefix('norm_')}", tensor[0, index]


def _named_invertible(block: Block, name: str, form: Form) -> dict[str, Tensor]:
    for ours, tensor in block.tensors.items():
        if not torch.equal(tensor[0, 0], tensor[0, -1]):
            raise ExportError(
                f"adapterhub: input and output share one invertible adapter there; here {ours} differs, because source "
                "and target are different languages. Export a condition of one language."
            )
    return {
        f"{form.embedding}.invertible_adapters.{name}.{INVERTIBLE[ours]}": tensor[0, 0]
        for ours, tensor in block.tensors.items()
    }


def _head_files(adapter: Adapter, name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    kind = HEADS[find_task(adapter.condition.task).export_head]
    config = {
        "head_type": kind, "num_labels": len(adapter.labels), "layers": 1, "activation_function": "tanh",
        "label2id": {label: number for number, label in enumerate(adapter.labels)}, "dropout_prob": None,
    }  # fmt: skip
    config |= {"use_pooler": False, "bias": True} if kind == "classification" else {}
    tensors = {f"heads.{name}.1.{part}": adapter.head[f"classifier.{part}"] for part in ("weight", "bias")}
    return {"head_config.json": {"config": config} | dict(about), "model_head.safetensors": tensors}


# -- reading ----------------------------------------------------------------------------------------------------------


def read_adapterhub(folders: list[Path], condition: Condition, shape: BackboneShape) -> Adapter:
    """Read adapters that are applied one after the other, such as a language's and a task's, as one adapter."""
    form, blocks, invertible = form_of(shape.family), [], []
    labels: tuple[str, ...] = ()
    head: dict[str, Tensor] = {}
    for folder in folders:
        described = read_json(folder / "adapter_config.json")
        config, name = _checked(described, shape, folder)
        tensors = read_safetensors(folder / "adapter.safetensors")
        placement = _placement(config, form, folder)
        blocks.append(_read_block(tensors, name, placement, form=form, shape=shape, folder=folder))
        if config.get("inv_adapter"):
            invertible.append(_read_invertible(tensors, name, form=form, shape=shape, folder=folder))
        kind = HEADS.get(find_task(condition.task).export_head)
        if (folder / "head_config.json").exists() and kind:
            labels, head = _read_head(folder, kind)
    about = {"method": "adapterhub"}
    return Adapter(condition, Weights((*blocks, *invertible[:1])), labels=labels, head=head, about=about)


def _checked(described: Mapping[str, Any], shape: BackboneShape, folder: Path) -> tuple[dict[str, Any], str]:
    config, name = described.get("config"), described.get("name")
    if not isinstance(config, dict) or not isinstance(name, str):
        raise ExportError(f"{folder}: adapter_config.json has no `config` or no `name`.")
    for key, ours in (("model_type", shape.family), ("hidden_size", shape.width)):
        if described.get(key, ours) != ours:
            raise ExportError(f"{folder}: is for a backbone with {key} {described[key]!r}; this one has {ours!r}.")
    for key, value in FIXED.items():
        if key not in ("dropout", "stochastic_depth") and config.get(key, value) != value:
            raise ExportError(f"{folder}: {key} is {config[key]!r}; only {value!r} can be read.")
    return config, name


def _placement(config: Mapping[str, Any], form: Form, folder: Path) -> str:
    defaults = {"original_ln_before": False, "residual_before_ln": True, "original_ln_after": True}
    asked = {key: config.get(key, default) for key, default in defaults.items()}
    for (placement, post_norm), known in PLACEMENTS.items():
        same = known == asked or (placement == "output" and known == asked | {"residual_before_ln": True})
        if post_norm == form.post_norm and same:
            return placement
    raise ExportError(f"{folder}: adapters at such a place cannot be read: {asked}.")


def _read_block(
    tensors: Mapping[str, Tensor], name: str, placement: str, *, form: Form, shape: BackboneShape, folder: Path
) -> Block:
    norms = [norm for norm in ("before", "after") if any(f".{name}.adapter_norm_{norm}." in key for key in tensors)]
    names = {
        ours: hub_name.format(linear=int("before" in norms))
        for ours, hub_name in BOTTLENECK.items()
        if "norm" not in ours or any(f"norm_{norm}." in hub_name for norm in norms)
    }
    sites = tuple(
        s for s in shape.sites if any(key.startswith(f"{_place(s, form)}.adapters.{name}.") for key in tensors)
    )
    if not sites:
        raise ExportError(f"{folder}: adapter.safetensors has nothing for {name!r} in a {shape.family}.")
    try:
        stacked = {
            ours: torch.stack([tensors[f"{_place(site, form)}.adapters.{name}.{hub_name}"] for site in sites])[None]
            for ours, hub_name in names.items()
        }
    except (KeyError, RuntimeError) as error:
        raise ExportError(f"{folder}: layers with different or missing tensors: {error}") from error
    return Block("bottleneck", placement, sites, stacked)


def _read_invertible(
    tensors: Mapping[str, Tensor], name: str, *, form: Form, shape: BackboneShape, folder: Path
) -> Block:
    sites = tuple(Site(stack, 0) for stack in shape.stacks)
    try:
        stacked = {
            ours: torch.stack([tensors[f"{form.embedding}.invertible_adapters.{name}.{hub_name}"]] * len(sites))[None]
            for ours, hub_name in INVERTIBLE.items()
        }
    except KeyError as error:
        raise ExportError(f"{folder}: of the invertible adapter (NICE) {error} is missing.") from error
    return Block("invertible", "embedding", sites, stacked)


def _read_head(folder: Path, kind: str) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    config = read_json(folder / "head_config.json").get("config")
    tensors = read_safetensors(folder / "model_head.safetensors")
    labels = config.get("label2id") if isinstance(config, dict) else None
    if not isinstance(config, dict) or config.get("head_type") != kind or config.get("layers") != 1:
        raise ExportError(f"{folder}: only a {kind} head of one layer can be read for this task.")
    if not isinstance(labels, dict) or sorted(labels.values()) != list(range(len(labels))):
        raise ExportError(f"{folder}: head_config.json does not say which label is which (label2id).")
    if config.get("use_pooler"):
        raise ExportError(f"{folder}: its head reads a pooler, which is not the first token's state.")
    parts = {
        f"classifier.{part}": t for part in ("weight", "bias") for k, t in tensors.items() if k.endswith(f".1.{part}")
    }
    return tuple(sorted(labels, key=lambda label: int(labels[label]))), parts
