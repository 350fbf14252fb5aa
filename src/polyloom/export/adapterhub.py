"""Write and read adapters in the format of AdapterHub's `adapters` library.

One directory per adapter: ``adapter_config.json`` with ``adapter.safetensors``, for a head ``head_config.json`` with
``model_head.safetensors``. A stack of language and task adapter is two directories. Pickles are neither written nor
read: load with ``use_safetensors=True``.
"""

from collections.abc import Mapping
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

    def module(self, site: Site) -> str:
        """Return the name of the module that has the adapters of a site."""
        # `last` is T5's feed-forward layer, which in a decoder comes after cross-attention.
        return self.site.format(stack=site.stack, layer=site.layer, last=1 if site.stack == "encoder" else 2)


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
    bottlenecks = [block for block in adapter.weights.blocks if block.kind == "bottleneck"]
    invertible = [block for block in adapter.weights.blocks if block.kind == "invertible"]
    _refuse(adapter, bottlenecks, form, shape)

    condition, kind = adapter.condition, BLOCKS["bottleneck"]
    stacked = len(bottlenecks) > 1  # one adapter for the languages, then one for the task
    names = ["-".join(condition.languages), condition.task] if stacked else [str(condition).replace("/", "-")]
    folders = []
    for name, block in zip(names, bottlenecks, strict=True):
        size = kind.size_of({part: tuple(tensor.shape[2:]) for part, tensor in block.tensors.items()})
        norm = kind.norm_of(block.tensors)
        config = FIXED | PLACEMENTS[block.placement, form.post_norm]
        config |= {
            # The library computes the size as int(width // factor), so the factor of an odd size lies in between.
            "reduction_factor": shape.width // size if shape.width % size == 0 else shape.width / (size + 0.5),
            "leave_out": [number for number, site in enumerate(shape.sites) if site not in block.sites],
            "ln_before": norm == "before", "ln_after": norm == "after", "inv_adapter": None,
        }  # fmt: skip

        tensors: dict[str, Tensor] = {}
        for index, site in enumerate(block.sites):
            prefix = f"{form.module(site)}.adapters.{name}."
            for ours, tensor in block.tensors.items():
                # `adapter_down` is a Sequential, where a norm before takes place 0 and moves the linear layer to 1.
                theirs = BOTTLENECK[ours].format(linear=int(norm == "before"))
                tensors[prefix + theirs] = tensor[0, index]
                if ours.startswith("norm_"):  # the library saves this norm under both of its names
                    tensors[f"{prefix}adapter_down.0.{ours.removeprefix('norm_')}"] = tensor[0, index]
        if invertible and name == names[0]:
            config |= {"inv_adapter": "nice", "inv_adapter_reduction_factor": 2}
            for ours, tensor in invertible[0].tensors.items():
                if not torch.equal(tensor[0, 0], tensor[0, -1]):
                    raise ExportError(
                        f"adapterhub: input and output share one invertible adapter there; here {ours} differs, "
                        "because source and target are different languages. Export a condition of one language."
                    )
                tensors[f"{form.embedding}.invertible_adapters.{name}.{INVERTIBLE[ours]}"] = tensor[0, 0]

        about = {
            "hidden_size": shape.width, "model_class": form.model_class, "model_type": shape.family, "name": name,
            "model_name": adapter.about.get("backbone", ""), "version": VERSION,
        }  # fmt: skip
        files: dict[str, Any] = {"adapter_config.json": {"config": config} | about, "adapter.safetensors": tensors}
        if adapter.head and name == names[-1]:
            head_type = HEADS[adapter.task.export_head]
            head = {
                "head_type": head_type, "num_labels": len(adapter.labels), "layers": 1, "activation_function": "tanh",
                "label2id": {label: number for number, label in enumerate(adapter.labels)}, "dropout_prob": None,
            }  # fmt: skip
            # Its classification head would read a pooler by default; Polyloom's reads the state of the first token.
            head |= {"use_pooler": False, "bias": True} if head_type == "classification" else {}
            parts = {f"heads.{name}.1.{part}": adapter.head[f"classifier.{part}"] for part in ("weight", "bias")}
            files |= {"head_config.json": {"config": head} | about, "model_head.safetensors": parts}
        folders.append(write_folder(into / name if stacked else into, files))
    return folders


def _refuse(adapter: Adapter, bottlenecks: list[Block], form: Form, shape: BackboneShape) -> None:
    """Raise an error for an adapter that the format cannot hold."""
    adapter.require_frozen_backbone("adapterhub")
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
    task, head = adapter.condition.task, adapter.task.export_head if adapter.head else None
    if adapter.head and head not in HEADS:
        raise ExportError(
            f"adapterhub: no head there computes what Polyloom's head for {task} does. Export without --format."
        )
    if head == "sequence-classification" and shape.stacks != ("encoder",):
        raise ExportError(
            f"adapterhub: its classification head for {shape.family} reads the last token, Polyloom's for {task} the "
            "first. Export without --format."
        )


# -- reading ----------------------------------------------------------------------------------------------------------


def read_adapterhub(folders: list[Path], condition: Condition, shape: BackboneShape) -> Adapter:
    """Read adapters that are applied one after the other, such as a language's and a task's, as one adapter."""
    form, head_type = form_of(shape.family), HEADS.get(find_task(condition.task).export_head)
    blocks: list[Block] = []
    invertible: list[Block] = []
    labels: tuple[str, ...] = ()
    head: dict[str, Tensor] = {}
    for folder in folders:
        # Settings that change the arithmetic must be ours: others would predict something else, without any error.
        described = read_json(folder / "adapter_config.json")
        config, name = described.get("config"), described.get("name")
        if not isinstance(config, dict) or not isinstance(name, str):
            raise ExportError(f"{folder}: adapter_config.json has no `config` or no `name`.")
        for key, ours in (("model_type", shape.family), ("hidden_size", shape.width)):
            if described.get(key, ours) != ours:
                raise ExportError(f"{folder}: is for a backbone with {key} {described[key]!r}; this one has {ours!r}.")
        for key, value in FIXED.items():
            if key not in ("dropout", "stochastic_depth") and config.get(key, value) != value:
                raise ExportError(f"{folder}: {key} is {config[key]!r}; only {value!r} can be read.")

        tensors = read_safetensors(folder / "adapter.safetensors")
        blocks.append(_read_bottleneck(tensors, name, _placement(config, form, folder), form, shape, folder))
        if config.get("inv_adapter"):
            prefix, sites = f"{form.embedding}.invertible_adapters.{name}", tuple(Site(s, 0) for s in shape.stacks)
            try:  # input and output share one there, so every stack gets the same
                nice = {ours: torch.stack([tensors[f"{prefix}.{theirs}"]] * len(sites))[None]
                        for ours, theirs in INVERTIBLE.items()}  # fmt: skip
            except KeyError as error:
                raise ExportError(f"{folder}: of the invertible adapter (NICE) {error} is missing.") from error
            invertible.append(Block("invertible", "embedding", sites, nice))
        if head_type and (folder / "head_config.json").exists():
            labels, head = _read_head(folder, head_type)
    weights = Weights((*blocks, *invertible[:1]))
    return Adapter(condition, weights, labels=labels, head=head, about={"method": "adapterhub"})


def _placement(config: Mapping[str, Any], form: Form, folder: Path) -> str:
    """Return the placement that the library's settings of norm and residual amount to."""
    defaults = {"original_ln_before": False, "residual_before_ln": True, "original_ln_after": True}
    settings = {key: config.get(key, default) for key, default in defaults.items()}
    for (placement, post_norm), known in PLACEMENTS.items():
        # Without the layer's norm before the adapter, it makes no difference where the residual is taken.
        same = known == settings or (placement == "output" and known == settings | {"residual_before_ln": True})
        if post_norm == form.post_norm and same:
            return placement
    raise ExportError(f"{folder}: adapters at such a place cannot be read: {settings}.")


def _read_bottleneck(
    tensors: Mapping[str, Tensor], name: str, placement: str, form: Form, shape: BackboneShape, folder: Path
) -> Block:
    """Stack the tensors of a bottleneck over the layers that have it; all must have the same ones."""
    norms = [norm for norm in ("before", "after") if any(f".{name}.adapter_norm_{norm}." in key for key in tensors)]
    names = {
        ours: theirs.format(linear=int("before" in norms))
        for ours, theirs in BOTTLENECK.items()
        if "norm" not in ours or any(f"norm_{norm}." in theirs for norm in norms)
    }
    prefixes = {site: f"{form.module(site)}.adapters.{name}." for site in shape.sites}
    sites = tuple(s for s, prefix in prefixes.items() if any(key.startswith(prefix) for key in tensors))
    if not sites:
        raise ExportError(f"{folder}: adapter.safetensors has nothing for {name!r} in a {shape.family}.")
    try:
        stacked = {
            ours: torch.stack([tensors[prefixes[site] + theirs] for site in sites])[None]
            for ours, theirs in names.items()
        }
    except (KeyError, RuntimeError) as error:
        raise ExportError(f"{folder}: layers with different or missing tensors: {error}") from error
    return Block("bottleneck", placement, sites, stacked)


def _read_head(folder: Path, kind: str) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Read labels and classifier of a head that computes what Polyloom's does; raise an error for any other."""
    config = read_json(folder / "head_config.json").get("config")
    tensors = read_safetensors(folder / "model_head.safetensors")
    labels = config.get("label2id") if isinstance(config, dict) else None
    if not isinstance(config, dict) or config.get("head_type") != kind or config.get("layers") != 1:
        raise ExportError(f"{folder}: only a {kind} head of one layer can be read for this task.")
    if not isinstance(labels, dict) or sorted(labels.values()) != list(range(len(labels))):
        raise ExportError(f"{folder}: head_config.json does not say which label is which (label2id).")
    if config.get("use_pooler"):
        raise ExportError(f"{folder}: its head reads a pooler, which is not the first token's state.")
    # The head is a Sequential of a dropout, 0, and the linear layer, 1.
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for part in ("weight", "bias"):
            if name.endswith(f".1.{part}"):
                parts[f"classifier.{part}"] = tensor
    return tuple(sorted(labels, key=lambda label: int(labels[label]))), parts
