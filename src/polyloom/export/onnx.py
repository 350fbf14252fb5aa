"""Export ONNX graphs: one per condition with its adapter inside, or one for all with the adapters as inputs."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyloom.conditions import Condition
from polyloom.errors import ExportError
from polyloom.export.storage import write_folder
from polyloom.model import Model
from polyloom.weights import Weights

GRAPH, ABOUT = "model.onnx", "model.json"


class Graph(nn.Module):
    """The module that is traced: it computes logits from token ids and an adapter."""

    def __init__(self, model: Model, condition: Condition, weights: Weights) -> None:
        super().__init__()
        self.model, self.condition, self.weights = model, condition, weights

    def forward(self, inputs: Mapping[str, Tensor], adapter: Mapping[str, Tensor] | None = None) -> Tensor:
        """Compute the logits of the head: of every token, of the sequence, or of the vocabulary."""
        weights = self.weights if adapter is None else named_weights(self.weights, adapter)
        backbone, task = self.model.backbone, self.model.task(self.condition.task)
        with backbone.using(weights, num_rows=inputs["input_ids"].shape[0]):
            if task.uses_lm_head:
                logits: Tensor = backbone(**inputs).logits
                return logits
            hidden_BTD = backbone.hidden(**inputs)
        return task.logits(self.model.head_inputs(hidden_BTD, weights))


def weight_names(weights: Weights) -> dict[str, Tensor]:
    """Name an adapter's tensors as the graph names its inputs."""
    return {f"block.{i}.{name}": t[0] for i, b in enumerate(weights.blocks) for name, t in b.tensors.items()}


def named_weights(like: Weights, tensors: Mapping[str, Tensor]) -> Weights:
    """Build the weights from tensors that are named as the graph's inputs are."""
    blocks = (
        replace(block, tensors={name: tensors[f"block.{i}.{name}"][None] for name in block.tensors})
        for i, block in enumerate(like.blocks)
    )
    return Weights(tuple(blocks))


def write_onnx(model: Model, conditions: Sequence[Condition], into: Path, *, baked: bool) -> Path:
    """Write a graph, and beside it the adapters that are its inputs, unless one is baked in.

    Args:
        model: The model.
        conditions: Conditions of one task, which share the graph; a single one with `baked`.
        into: A new directory.
        baked: Whether the adapter is part of the graph.
    """
    first = conditions[0]
    if len({condition.task for condition in conditions}) > 1 or (baked and len(conditions) > 1):
        raise ExportError("onnx: a graph is of one task, and with an adapter inside of one condition.")
    task = model.task(first.task)
    if task.export_head is None:
        raise ExportError(
            f"onnx: what {first.task} predicts is not a function of one graph. Export it without --format."
        )
    if find_spec("onnxscript") is None:
        raise ExportError("onnx: needs the package onnxscript. Install polyloom[onnx].")
    model = model.eval()
    with torch.no_grad():
        weights = {condition: model.method.weights([condition]) for condition in conditions}
    adapter = None if baked else weight_names(weights[first])

    # One of the two example rows is padded: without padding the tracer may drop the attention mask. Sizes of batch and
    # texts stay variable, those of the adapter are fixed.
    stacks = model.backbone.shape.stacks
    ids_BT, mask_BT = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    mask_BT[1, 0 if stacks == ("decoder",) else -1] = 0
    inputs = {"input_ids": ids_BT, "attention_mask": mask_BT}
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=2)
    sizes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    if len(stacks) > 1:
        inputs["decoder_input_ids"] = ids_BT[:, :3]
        sizes["decoder_input_ids"] = {0: batch, 1: torch.export.Dim("target", min=2)}
    shapes: dict[str, Any] = {"inputs": sizes, "adapter": None}
    if adapter is not None:
        shapes["adapter"] = {name: dict[int, Any]() for name in adapter}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        program = torch.onnx.export(
            Graph(model, first, weights[first]), kwargs={"inputs": inputs, "adapter": adapter}, dynamo=True,
            dynamic_shapes=shapes, verbose=False, input_names=[*inputs, *(adapter or ())], output_names=["logits"],
        )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        _drop_traces(nodes)

    about = {
        "task": first.task,
        "labels": list(task.labels),
        "inputs": list(inputs),
        "adapter": list(adapter or ()),
        "conditions": [str(condition) for condition in conditions],
    }
    files: dict[str, Any] = {GRAPH: proto.SerializeToString(), ABOUT: about}
    if not baked:
        files |= {f"{str(c).replace('/', '-')}.safetensors": weight_names(of_condition)
                  for c, of_condition in weights.items()}  # fmt: skip
    return write_folder(into, files)


def _drop_traces(nodes: Iterable[Any]) -> None:
    """Remove what the exporter notes on nodes: traces with the paths of source files on this machine."""
    for node in nodes:
        del node.metadata_props[:]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):  # of conditions and loops
                _drop_traces(graph.node)
